"""`python -m trainer.prepare`: starts the training engine once on a toy model, as part of the install.

It proves that DeepSpeed runs here, and has Python compile the thousands of modules behind it, so that the first trainer starts in
seconds. Needs no compiler: see trainer.engine.start_deepspeed. Raises what the engine raises.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path


def prepare() -> float:
    """One step of a toy model through DeepSpeed; its gradient norm."""
    import numpy as np
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    from schemas.common import SamplingSettings
    from schemas.settings import TrainSettings
    from trainer.engine import TrainEngine
    from trainer.packing import Trajectory

    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16}
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    toy = Trajectory("toy", "agent", 1.0, 0, np.arange(4), np.array([2, 3]), np.full(2, -2, np.float32), np.zeros(2, np.int64))
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).save_pretrained(folder)
        return TrainEngine(Path(folder), TrainSettings()).train([toy], [SamplingSettings()]).grad_norm


def main() -> None:
    """The install step."""
    print("Starting DeepSpeed once (Python compiles it now, up to a minute) ...", flush=True)  # noqa: T201  # the command's output
    started = time.monotonic()
    prepare()
    print(f"DeepSpeed works here ({time.monotonic() - started:.0f} s)", flush=True)  # noqa: T201  # the command's output


if __name__ == "__main__":
    main()
