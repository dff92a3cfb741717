"""Dialects by name: how prompts are written for a model and its tokens read back. Imports no torch and no transformers."""

from pathlib import Path

from infra.dialects.base import Dialect, ParsedDesign, ParsedTurn
from schemas.errors import SettingsError
from schemas.settings import Recipe

__all__ = ["Dialect", "ParsedDesign", "ParsedTurn", "load_dialect", "recipe_dialect"]


def load_dialect(
    name: str, tokenizer_dir: Path, *, thinking: bool = True, hint_apart: bool = False, prompt_tokens: int = 16_384
) -> Dialect:
    """The dialect of this name over a tokenizer folder. Raises SettingsError (unknown name) or ModelError (unfit folder).

    The options are those of the chat dialects (infra.dialects.chat); the nano dialect has none.
    """
    if name == "nano":
        from infra.dialects.nano import NanoDialect

        return NanoDialect(tokenizer_dir)
    if name in ("games", "tools"):
        from infra.dialects.chat import ChatDialect

        return ChatDialect(name, tokenizer_dir, thinking=thinking, hint_apart=hint_apart, prompt_tokens=prompt_tokens)
    raise SettingsError(f"no dialect is called {name!r}", "Known: nano, games, tools")


def recipe_dialect(recipe: Recipe, tokenizer_dir: Path) -> Dialect:
    """The dialect of a recipe. A design's prompt may fill what the context leaves beside the design."""
    room = recipe.rollout.context_tokens - recipe.design.sampling.max_tokens
    return load_dialect(
        recipe.model.dialect,
        tokenizer_dir,
        thinking=recipe.model.thinking,
        hint_apart=recipe.design.hint_by_second_call,
        prompt_tokens=max(room, 0),
    )
