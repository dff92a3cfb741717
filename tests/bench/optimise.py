"""How fast a batch is optimised: this trainer, a bare torch loop that packs equally, TRL's GRPOTrainer, by turns in one run.

In: the nano model, a batch of plays whose lengths are skewed as episodes are (mean a quarter of the longest). Out: seconds a step
and useful tokens a second; useful are trained tokens. Called by `make bench`. The same model, batch, loss (clipped ratio, mean
over all tokens), optimizer and threads for all three; generation is not measured. TRL comes with the extra `bench`;
without it the two others are measured.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from schemas.common import SamplingSettings
from schemas.settings import TrainSettings
from schemas.train import AGENT
from tests.bench.table import Row
from trainer.packing import Trajectory

MODEL: Final = Path(__file__).parents[2] / "trainer" / "nano" / "model"
TABLE: Final = [SamplingSettings(temperature=1.0, top_p=1.0, top_k=0)]
OURS, BARE, PEER = "this trainer", "bare torch loop", "TRL"
TRL_BATCH: Final = 8  # its own default for a pass


@dataclass(frozen=True)
class Load:
    """What is optimised."""

    plays: int = 64
    group: int = 8  # plays of one prompt
    prompt: int = 64  # tokens
    longest: int = 512  # tokens of a completion
    pass_tokens: int = 4096
    rounds: int = 7
    threads: int = 1


def lengths(load: Load) -> list[int]:
    """Completion lengths by the quantiles of an exponential distribution, cut at the longest; mean about a quarter of it."""
    shares = (np.arange(load.plays) + 0.5) / load.plays
    spread = np.clip(-np.log1p(-shares) * load.longest * 0.26, 4, load.longest).astype(int)
    return [int(value) for value in np.random.default_rng(1).permutation(spread)]


def make_batch(load: Load) -> list[Trajectory]:
    """Plays of random tokens, advantages of mean 0 within a group."""
    random = np.random.default_rng(0)
    found = []
    for number, length in enumerate(lengths(load)):
        prompt = np.random.default_rng(100 + number // load.group).integers(10, 700, load.prompt)
        tokens = np.concatenate([prompt, random.integers(10, 700, length)])
        actions = np.arange(load.prompt, len(tokens))
        advantage = float((number % load.group) - (load.group - 1) / 2) / 2.3
        zeros = np.zeros(length, np.int64)
        found.append(Trajectory(str(number), AGENT, advantage, 0, tokens, actions, np.zeros(length, np.float32), zeros))
    return found


def settings(load: Load) -> TrainSettings:
    """The optimisation that all share."""
    return TrainSettings(
        learning_rate=1e-6,
        weight_decay=0.0,
        betas=(0.9, 0.999),
        micro_batch_tokens=load.pass_tokens,
        packing="packed",
        zero_stage=0,
        threads=load.threads,
    )


class BareLoop:
    """Packed rows, clipped ratio, backward, clip, AdamW: what a step can't do without."""

    def __init__(self, batch: Sequence[Trajectory], load: Load) -> None:
        import torch

        from trainer.attention import use_packed_attention
        from trainer.model import PolicyModule, load_language_model
        from trainer.packing import pack

        model = load_language_model(MODEL, "float32")
        use_packed_attention(model)
        self.module = PolicyModule(model)
        weight = 1.0 / sum(len(one.actions) for one in batch)
        self.micros = pack(batch, [weight] * len(batch), range(len(batch)), load.pass_tokens, all_gradients=True, packed=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.999), weight_decay=0.0)
        self.norm = 0.0

    def logprobs(self, micro: Any) -> Any:
        """[n] of the actions."""
        logits = self.module(micro.ids, micro.row, micro.column, micro.place, micro.bounds)
        return logits.log_softmax(-1).gather(-1, micro.target[:, None]).squeeze(-1)

    def step(self) -> float:
        """Seconds of one step."""
        import torch

        began = time.perf_counter()
        for micro in self.micros:
            now = self.logprobs(micro)
            ratio = (now - now.detach()).exp()
            gain = torch.minimum(ratio * micro.advantage, ratio.clamp(0.8, 1.28) * micro.advantage)
            torch.autograd.backward(-(gain * micro.weight).sum())
        self.norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began


class Peer:
    """TRL's trainer over completions that are there already; what it does until a step's passes begin is not counted."""

    def __init__(self, batch: Sequence[Trajectory], load: Load, folder: Path) -> None:
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        seconds: list[float] = []
        prompts = [[int(token) for token in one.tokens[: load.prompt]] for one in batch[:: load.group]]

        class Timed(GRPOTrainer):  # type: ignore[misc]  # TRL ships no types
            preparing = 0.0

            def _prepare_inputs(self, inputs: Any) -> Any:
                began = time.perf_counter()
                try:
                    return super()._prepare_inputs(inputs)
                finally:
                    self.preparing += time.perf_counter() - began

        class Clock(TrainerCallback):  # type: ignore[misc]  # as above
            began = 0.0

            def on_step_begin(self, *_: Any, **__: Any) -> None:
                self.began, trainer.preparing = time.perf_counter(), 0.0

            def on_step_end(self, *_: Any, **__: Any) -> None:
                seconds.append(time.perf_counter() - self.began - trainer.preparing)

        def rollouts(asked: list[str], _: Any) -> dict[str, Any]:
            # Prompts come as their numbers, each `group` times; equal prompts get the plays of theirs in turn.
            seen: dict[int, int] = defaultdict(int)
            chosen = []
            for name in asked:
                number = int(name)
                chosen.append(batch[number * load.group + seen[number] % load.group])
                seen[number] += 1
            return {
                "prompt_ids": [prompts[int(name)] for name in asked],
                "completion_ids": [[int(token) for token in one.tokens[load.prompt :]] for one in chosen],
                "logprobs": None,
                "advantage": [one.advantage for one in chosen],
            }

        config = GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=TRL_BATCH,
            gradient_accumulation_steps=load.plays // TRL_BATCH,
            num_generations=load.group,
            max_completion_length=load.longest,
            learning_rate=1e-6,
            weight_decay=0.0,
            max_grad_norm=1.0,
            lr_scheduler_type="constant",
            loss_type="dapo",
            epsilon=0.2,
            epsilon_high=0.28,
            beta=0.0,
            temperature=1.0,
            scale_rewards=False,
            max_steps=2,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        trainer = Timed(
            model=AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
            reward_funcs=lambda advantage, **_: advantage,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(len(prompts))]}),
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            rollout_func=rollouts,
            callbacks=[Clock()],
        )
        self._trainer, self._seconds = trainer, seconds

    @property
    def norm(self) -> float:
        """Of the gradient of the last step."""
        return float(next(entry["grad_norm"] for entry in reversed(self._trainer.state.log_history) if "grad_norm" in entry))

    def step(self) -> float:
        """Seconds of the second of two steps: the first makes the optimizer's state."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._trainer.train()
        return self._seconds[-1]


def contestants(load: Load, folder: Path) -> dict[str, Callable[[], float]]:
    """A step of each, ready to be timed."""
    import torch

    from trainer.engine import TrainEngine

    batch = make_batch(load)
    bare = BareLoop(batch, load)
    with torch.no_grad():  # what was sampled has the policy's own log-probability: no correction, as in the others
        known: dict[int, Any] = {}
        for micro in bare.micros:
            now = bare.logprobs(micro).numpy()
            for number, position in enumerate(micro.index):
                known[position] = now[(micro.sample == number).numpy()]
    played = [replace(one, sampled=np.asarray(known[number], np.float32)) for number, one in enumerate(batch)]
    engine = TrainEngine(MODEL, settings(load))

    def ours() -> float:
        began = time.perf_counter()
        engine.train(played, TABLE)
        return time.perf_counter() - began

    found = {OURS: ours, BARE: bare.step}
    if importlib.util.find_spec("trl"):
        found[PEER] = Peer(batch, load, folder).step
    return found


def measure(load: Load | None = None, tell: Callable[[str], None] = lambda _: None) -> Mapping[str, list[float]]:
    """Seconds of each contestant's steps, by turns; the first round is left out."""
    load = load or Load()
    if not importlib.util.find_spec("trl"):
        tell("TRL is not installed (extra `bench`): left out")
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        steps = contestants(load, Path(folder))
        for number in range(load.rounds + 1):
            tell(f"optimisation, round {number} of {load.rounds}")
            for name, step in steps.items():
                took = step()
                if number:
                    seconds[name].append(took)
    return seconds


def optimise_rows(seconds: Mapping[str, Sequence[float]], load: Load | None = None) -> list[Row]:
    """Ratios of medians."""
    tokens = sum(lengths(load or Load()))
    mid = {name: float(np.median(values)) for name, values in seconds.items()}
    beside_trl = [Row("optimisation: useful tokens a second / TRL's GRPOTrainer", mid[PEER] / mid[OURS], 2, at_least=True)]
    return [
        *(beside_trl if PEER in mid else []),
        Row("optimisation: useful tokens a second / a bare torch loop that packs", mid[BARE] / mid[OURS], 0.9, at_least=True),
        *(Row(f"optimisation: {name}", tokens / mid[name], unit="useful tokens/s") for name in mid),
    ]
