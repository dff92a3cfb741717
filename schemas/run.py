"""A run's first and last records, and the dead letters."""

from __future__ import annotations

from schemas.common import Record


class RunStarted(Record, frozen=True, kw_only=True):
    """The first record of a run: every process takes its settings from here, never from a local file."""

    recipe_json: str  # schemas.settings.Recipe as JSON
    recipe_name: str
    seed: int
    steps: int
    policy_place: str  # fsspec folder below which policies are published
    code_digest: str
    corpus_digest: str
    tokenizer_digest: str
    dialect: str
    forked_from: str = ""  # the run whose policy version `forked_at` is this run's version 0; "": no fork
    forked_at: int = -1


class RunEnding(Record, frozen=True, kw_only=True):
    """No generation after `last_generation` is opened. Written by streams/design."""

    last_generation: int
    cause: str


class RunFinished(Record, frozen=True, kw_only=True):
    """The trainer has trained the last batch."""

    steps: int
    drain_steps: int
    final_version: int
    final_digest: str
    agent_samples: int
    designer_samples: int
    cause: str


class DeadLetter(Record, frozen=True, kw_only=True):
    """A record that could not be used, with where it stood and why."""

    origin_topic: str
    partition: int
    offset: int
    reason: str
    data: bytes = b""
