"""Dialects by name: how prompts are written for a model and its tokens read back. Imports no torch and no transformers."""

from pathlib import Path

from infra.dialects.base import Dialect, ParsedDesign
from schemas.errors import SettingsError

__all__ = ["Dialect", "ParsedDesign", "load_dialect"]


def load_dialect(name: str, tokenizer_dir: Path) -> Dialect:
    """The dialect of this name over a tokenizer folder. Raises SettingsError (unknown name) or ModelError (unfit folder)."""
    if name == "nano":
        from infra.dialects.nano import NanoDialect

        return NanoDialect(tokenizer_dir)
    raise SettingsError(f"no dialect is called {name!r}", "Known: nano")
