"""A small chat model with random weights as a run publishes it: folder, canary, and what it says of a text by a plain forward."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.common import SamplingSettings, pack_floats, pack_ints
from schemas.train import Canary, PolicyPublished
from tests.chatmodels import write_model

CANARY = list(range(5, 205))


@dataclass(frozen=True)
class Policy:
    """One version."""

    model: Any
    folder: Path
    version: int

    @property
    def published(self) -> PolicyPublished:
        """Its publication, with the canary of a plain float32 forward."""
        import torch

        chosen = torch.tensor(CANARY[1:]).unsqueeze(-1)
        logprobs = self.logits(CANARY).log_softmax(-1)[:-1].gather(-1, chosen).squeeze(-1)
        return PolicyPublished(
            run_id="r",
            event_id=f"policy-{self.version}",
            version=self.version,
            digest=f"digest-{self.version}",
            place=str(self.folder),
            canary=Canary(tokens=pack_ints(CANARY), logprobs=pack_floats(logprobs.tolist())),
        )

    def logits(self, tokens: list[int]) -> Any:
        """[tokens, vocabulary] float32."""
        import torch

        with torch.inference_mode():
            return self.model(torch.tensor([tokens]), use_cache=False).logits[0].float()

    def logprobs(self, tokens: list[int], start: int, settings: SamplingSettings) -> list[float]:
        """What each of tokens[start:] had under the settings."""
        import torch

        from infra.sampling import processed_logprobs

        told = processed_logprobs(self.logits(tokens)[start - 1 : -1], settings)
        values: list[float] = told.gather(-1, torch.tensor(tokens[start:]).unsqueeze(-1)).squeeze(-1).tolist()
        return values


def make_policy(folder: Path, version: int, *, tied: bool = True, dtype: str = "float32") -> Policy:
    """Other weights for each version, over the tokenizer of the `qwen` family. `dtype`: in which the weights are rounded."""
    import torch
    from tokenizers import Tokenizer
    from transformers import Qwen3Config, Qwen3ForCausalLM

    origin = write_model(folder.parent / "tokenizer", "qwen")
    shutil.copytree(origin, folder)
    torch.manual_seed(version)
    config = Qwen3Config(
        vocab_size=Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        initializer_range=0.3 if dtype == "float32" else 0.08,
        tie_word_embeddings=tied,
    )
    model = Qwen3ForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    return Policy(model.float().eval(), folder, version)
