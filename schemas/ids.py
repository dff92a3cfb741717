"""Derived ids and seeds: every copy of a record is equal, whoever writes it and however often.

Ids are uuid5 of run, generation, slot, design attempt and, for plays, step, arm and index. Seeds of environments derive from
environment, step and index (the same in both arms); seeds of sampling from the id of what is sampled.
"""

from __future__ import annotations

import hashlib
import uuid

_NAMESPACE = uuid.UUID("6a3f2c0e-7c0b-5d0a-9a55-5bade5bade00")


def derive(*parts: str | int) -> str:
    """A uuid5 of the parts, in order."""
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(str(part) for part in parts)))


def env_id(run_id: str, generation: int, slot: int, design_attempt: int) -> str:
    return derive("env", run_id, generation, slot, design_attempt)


def design_unit_id(run_id: str, generation: int, design_attempt: int, unit: int) -> str:
    return derive("design-unit", run_id, generation, design_attempt, unit)


def rollout_unit_id(run_id: str, step: int, unit: int) -> str:
    return derive("rollout-unit", run_id, step, unit)


def repeat_unit_id(env: str, step: int, repeat: int) -> str:
    """The unit in which the plays of one environment and step are asked for again (free schedule); repeat >= 1."""
    return derive("repeat-unit", env, step, repeat)


def play_id(env: str, step: int, arm: str, index: int, repeat: int = 0) -> str:
    """`env` is derived from run, generation, slot and attempt already. `repeat`: how often the play was asked for before."""
    return derive("play", env, step, arm, index, *([repeat] if repeat else []))


def env_seed(env: str, step: int, index: int) -> int:
    """The environment's seed for a play, the same in both arms; 0 <= seed < 2**31."""
    return _number("env-seed", env, step, index) % 2**31


def sampling_seed(sampled_id: str) -> int:
    """The sampler's seed for a play or a design; 0 <= seed < 2**63."""
    return _number("sampling-seed", sampled_id) % 2**63


def event_id(kind: str, *parts: str | int) -> str:
    """The id of a record that has no id of its own."""
    return derive("event", kind, *parts)


def chosen(identifier: str, share: float, purpose: str) -> bool:
    """Whether a hash of the id falls into the first `share` of its range: audits and samples, by id and never by chance."""
    return _number(purpose, identifier) < share * 2**64


def _number(*parts: str | int) -> int:
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
