"""Jail sessions of many episodes at once: bounded in number, and opened anew where the machine ended one.

In: sources, seeds and actions by episode. Out: observations and rewards, SessionEnd where the environment ended the session, or
PlayLostError where the machine did in every try. Called by workers.episodes. An episode whose session is gone (a failure of the
infrastructure, or more episodes than sessions) is repeated from its seed with its own actions, which the gate has proved to give
the same again; so no failure changes which plays stand in the sampler's next batch.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from workers.sandbox.base import EndReason, ErrorKind, Sandbox, Session, SessionEnd, StepResult, is_infrastructure

MAX_OPEN = 512  # about a MiB each
T = TypeVar("T")


class PlayLostError(Exception):
    """The infrastructure failed in every try; the message is the reason to record."""


@dataclass
class _Episode:
    source: str
    seed: int
    max_turns: int
    actions: list[str] = field(default_factory=list)
    seen: list[StepResult] = field(default_factory=list)
    opening: str | None = None  # first observation


class SessionTable:
    """Sessions by episode id, at most `max_open` at a time. One thread's object."""

    def __init__(self, sandbox: Sandbox, tries: int, max_open: int = MAX_OPEN) -> None:
        self.failed: Counter[str] = Counter()  # by episode, also closed ones: tries that the machine ended
        self._sandbox = sandbox
        self._tries = tries
        self._max_open = max_open
        self._episodes: dict[str, _Episode] = {}
        self._open: OrderedDict[str, Session] = OrderedDict()

    def reset(self, episode_id: str, source: str, seed: int, max_turns: int) -> str:
        """Begins an episode; its first observation."""
        episode = self._episodes[episode_id] = _Episode(source, seed, max_turns)
        self._attempt(episode_id, lambda: self._session(episode_id))
        assert episode.opening is not None  # an opened session has been reset
        return episode.opening

    def step(self, episode_id: str, action: str) -> StepResult:
        """Plays one action."""
        episode = self._episodes[episode_id]
        result = self._attempt(episode_id, lambda: self._session(episode_id).step(action))
        episode.actions.append(action)
        episode.seen.append(result)
        return result

    def close(self, episode_id: str) -> None:
        """Ends an episode; unknown ones are none."""
        self._episodes.pop(episode_id, None)
        self._drop(episode_id)

    def close_all(self) -> None:
        """Ends all episodes."""
        for episode_id in list(self._episodes):
            self.close(episode_id)

    def _attempt(self, episode_id: str, call: Callable[[], T]) -> T:
        """The call's result, tried again in a new session where the machine ended the old one."""
        for tried in range(1, self._tries + 1):
            try:
                return call()
            except SessionEnd as end:
                self._drop(episode_id)
                if not is_infrastructure(end.reason):
                    raise
                self.failed[episode_id] += 1
                if tried == self._tries:
                    raise PlayLostError(f"{end.reason} in {tried} tries: {end.evidence}") from end
        raise AssertionError("tries are at least 1")

    def _session(self, episode_id: str) -> Session:
        """The episode's session, brought to where the episode stands."""
        session = self._open.get(episode_id)
        if session is None:
            while len(self._open) >= self._max_open:
                self._open.popitem(last=False)[1].close()
            episode = self._episodes[episode_id]
            session = self._open[episode_id] = self._sandbox.open(episode.source, max_turns=episode.max_turns)
            self._repeat(episode, session)
        self._open.move_to_end(episode_id)
        return session

    def _repeat(self, episode: _Episode, session: Session) -> None:
        opening = session.reset(episode.seed)
        if episode.opening is None:
            episode.opening = opening
        same = opening == episode.opening and all(
            session.step(action) == seen for action, seen in zip(episode.actions, episode.seen, strict=True)
        )
        if not same:
            raise PlayLostError("the environment did not repeat itself in a new jail")

    def _drop(self, episode_id: str) -> None:
        session = self._open.pop(episode_id, None)
        if session is not None:
            session.close()


def end_reason(end: SessionEnd) -> str:
    """How an episode is recorded that the environment ended: the reason, or non_finite, which evicts it."""
    nonfinite = end.reason == EndReason.ENV_ERROR and end.kind == ErrorKind.NONFINITE
    return "non_finite" if nonfinite else end.reason.value
