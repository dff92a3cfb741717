"""Plays inside the gate: one episode of the play text under a fixed policy, with what it showed.

In: a sandbox, the play text, a seed and a policy. Out: a Play. Each play is a session of its own, set up as every play of a
rollout is. Raises Refused where the environment breaks the contract, GateInterrupted where the machine ended the session.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from workers.gate.rules import GateInterrupted, GateRule, Refused
from workers.sandbox.base import EndReason, ErrorKind, Sandbox, Session, SessionEnd, StepResult, is_infrastructure

MAX_STEPS: Final = 64
# (first observation, observation so far, turn) -> action, or None to stop
Policy = Callable[[str, str, int], str | None]


@dataclass(frozen=True)
class Play:
    """One episode. `value` is its return: the last reward where it terminated, else 0, within [-1, 1]."""

    seed: int
    actions: tuple[str, ...]
    first: str
    steps: tuple[StepResult, ...]

    @property
    def terminated(self) -> bool:
        """Whether the environment itself ended the episode."""
        return bool(self.steps) and self.steps[-1].terminated

    @property
    def ended(self) -> bool:
        """Terminated or truncated."""
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def value(self) -> float:
        """See the class."""
        return max(-1.0, min(1.0, self.steps[-1].reward)) if self.terminated else 0.0

    def transcript(self) -> tuple[object, ...]:
        """What has to repeat."""
        return (self.first, self.steps)


@dataclass
class Table:
    """Where plays happen: the play text, its jails, the lowest reward and the number of plays so far."""

    sandbox: Sandbox
    source: str
    max_turns: int
    reward_min: float = 0.0
    plays: int = 0

    @property
    def cap(self) -> int:
        """Steps within which every episode must end."""
        return min(self.max_turns, MAX_STEPS)

    def play(
        self, seed: int, policy: Policy, *, hash_seed: int = 0, beyond_end: str | None = None, rule: GateRule | None = None
    ) -> Play:
        """Plays one episode; `rule` is what a data end of the session counts against (default: by its kind). `beyond_end`: an
        action to play once more after the end."""
        self.plays += 1
        try:
            with self.sandbox.open(self.source, max_turns=self.max_turns, hash_seed=hash_seed) as session:
                first = session.reset(seed)
                if not getattr(session, "first_info_empty", True):
                    raise Refused(GateRule.INFO, "reset's info holds something")
                actions, steps = self._episode(session, first, policy)
                play = Play(seed, tuple(actions), first, tuple(steps))
                if beyond_end is not None and play.ended:
                    self._step_beyond(session, beyond_end, seed)
        except SessionEnd as end:
            raise refusal(end, f"seed {seed}", rule) from end
        return play

    def repeat(self, recorded: Sequence[Play], rule: GateRule) -> list[Play]:
        """Plays recorded actions again, all on one object that is reset in between, and once before without a step."""
        self.plays += len(recorded)
        again = []
        try:
            with self.sandbox.open(self.source, max_turns=self.max_turns) as session:
                session.reset(recorded[-1].seed)
                for play in recorded:
                    first = session.reset(play.seed)
                    actions, steps = self._episode(session, first, scripted(play.actions))
                    again.append(Play(play.seed, tuple(actions), first, tuple(steps)))
        except SessionEnd as end:
            raise refusal(end, f"reset number {len(again) + 2} of one object", rule) from end
        return again

    def _episode(self, session: Session, first: str, policy: Policy) -> tuple[list[str], list[StepResult]]:
        actions: list[str] = []
        steps: list[StepResult] = []
        observation = first
        while len(steps) < self.cap:
            action = policy(first, observation, len(steps))
            if action is None:
                break
            result = session.step(action)
            self._check_step(result)
            actions.append(action)
            steps.append(result)
            observation = result.observation
            if result.terminated or result.truncated:
                break
        return actions, steps

    def _check_step(self, result: StepResult) -> None:
        self.reward_min = min(self.reward_min, result.reward)
        if not -1.0 <= result.reward <= 1.0:
            raise Refused(GateRule.TYPES, f"reward {result.reward:g} is outside [-1, 1]", {"reward": result.reward})
        if not result.info_empty:
            raise Refused(GateRule.INFO, "info holds something: what a player may know belongs into the observation")

    def _step_beyond(self, session: Session, action: str, seed: int) -> None:
        """One more step after the end: it may fail, it may not pay."""
        try:
            result = session.step(action)
        except SessionEnd as end:
            if end.reason is EndReason.ENV_ERROR and end.kind is ErrorKind.RAISED:
                return
            raise
        if result.reward > 0:
            evidence = f"seed {seed}: a step after the episode's end paid {result.reward:g}: remember the end and pay 0"
            raise Refused(GateRule.AFTER_END, evidence, {"reward": result.reward})


def refusal(end: SessionEnd, where: str, rule: GateRule | None = None) -> Refused | GateInterrupted:
    """What the end of a session means for the design."""
    if is_infrastructure(end.reason):
        return GateInterrupted(f"{where}: {end}")
    if end.kind in (ErrorKind.TYPES, ErrorKind.NONFINITE) and rule is not GateRule.REPLAY:
        return Refused(GateRule.TYPES, f"{where}: {end.evidence}")
    if rule is not None:
        return Refused(rule, f"{where}: {end}")
    return Refused(GateRule.RUNS if end.reason is EndReason.ENV_ERROR else GateRule.JAIL, f"{where}: {end.evidence}")


def scripted(actions: Sequence[str]) -> Policy:
    """Plays the actions in order, then stops."""
    return lambda _first, _observation, turn: actions[turn] if turn < len(actions) else None


def constant(action: str) -> Policy:
    """Plays one action for ever."""
    return lambda _first, _observation, _turn: action


def derive(source: str, purpose: str, index: int, bits: int = 31) -> int:
    """A number below 2**bits by hash of the source: equal in every judgement of it, unknown to who writes it."""
    digest = hashlib.sha256(f"spade-gate\0{purpose}\0{index}\0{source}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - bits)
