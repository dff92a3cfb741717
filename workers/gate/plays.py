"""Plays inside the gate: one episode of the play text under a fixed policy, with what it showed.

In: a sandbox, the play text, a seed and a policy. Out: a Play. Each play is a session of its own, set up as every play of a
rollout is. Raises Refused where the environment breaks the contract, GateInterrupted where the machine ended the session.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from workers.gate.rules import GateInterrupted, GateRule, Refused
from workers.sandbox.base import EndReason, ErrorKind, Limits, Sandbox, Session, SessionEnd, StepResult, is_infrastructure

MAX_STEPS: Final = 64
LIMITS: Final = Limits()
ON_ONE_OBJECT: Final = 16  # episodes
CPU_S: Final = 20.0  # of all jails in one judgement: some forty times what a large design takes
LOOK_S = 0.5  # between two looks at it, which cost as much as a step: most judgements are over by then
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
    """Where plays happen: the play text, its jails, the lowest reward and the number of episodes played so far.

    What was played once in the first jail is not played again: the same actions on the same seed give the recorded results, from
    the moment when the replay rule has shown that they do (`repeats`). A policy that leaves the record plays for real, from the
    start, in a session of its own. Replay itself never reads the record.
    """

    sandbox: Sandbox
    source: str
    max_turns: int
    reward_min: float = 0.0
    plays: int = 0
    repeats: bool = False
    cpu_began_s: float = field(init=False)
    looked_s: float = field(init=False)
    record: dict[tuple[int, tuple[str, ...]], StepResult] = field(default_factory=dict)
    firsts: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cpu_began_s, self.looked_s = self.sandbox.cpu_s(), time.monotonic()

    @property
    def cap(self) -> int:
        """Steps within which every episode must end."""
        return min(self.max_turns, MAX_STEPS)

    def play(
        self, seed: int, policy: Policy, *, hash_seed: int = 0, beyond_end: str | None = None, rule: GateRule | None = None
    ) -> Play:
        """Plays one episode; `rule` is what a data end of the session counts against (default: by its kind). `beyond_end`: an
        action to play once more after the end."""
        if self.repeats and not hash_seed and beyond_end is None and rule is not GateRule.REPLAY:
            known, policy = self._recall(seed, policy)
            if known is not None:
                return known
        self.plays += 1
        self._check_cpu()
        try:
            with self.sandbox.open(self.source, max_turns=self.max_turns, hash_seed=hash_seed) as session:
                first = _begin(session, seed)
                actions, steps = self._episode(session, first, policy)
                play = Play(seed, tuple(actions), first, tuple(steps))
                if beyond_end is not None and play.ended:
                    self._step_beyond(session, beyond_end, seed)
        except SessionEnd as end:
            raise refusal(end, f"seed {seed}", rule) from end
        if not hash_seed:
            self._keep(play)
        return play

    def play_each(self, actions: Sequence[str], seeds: Sequence[int], rule: GateRule) -> list[Play]:
        """Plays every action once, as many in one episode as it takes; up to ON_ONE_OBJECT episodes on one object that is reset
        in between. For rules that look for what pays or breaks by accident, after the reset rule: a design that tells a reset
        object from a new one gains nothing here that a word known to nobody else would not give it. One episode of each object,
        drawn by hash, is played on a new object too and must be the same."""
        pending = list(actions)
        played: list[Play] = []
        while pending:
            begun = len(played)
            self._check_cpu()
            try:
                with self.sandbox.open(self.source, max_turns=self.max_turns) as session:
                    room = LIMITS.steps
                    while pending and len(played) < begun + ON_ONE_OBJECT and room >= self.cap:
                        played.append(self._next_episode(session, seeds[len(played) % len(seeds)], pending))
                        pending = pending[len(played[-1].actions) :]
                        room -= len(played[-1].actions)
            except SessionEnd as end:
                raise refusal(end, f"seed {seeds[len(played) % len(seeds)]}", rule) from end
            drawn = played[begun + derive(self.source, f"{rule} on a new object", begun) % (len(played) - begun)]
            if self.play(drawn.seed, scripted(drawn.actions), rule=rule).transcript() != drawn.transcript():
                raise Refused(GateRule.RESET, f"seed {drawn.seed}: {drawn.actions[-1][:40]!r} is another thing to a new object")
        return played

    def _next_episode(self, session: Session, seed: int, actions: Sequence[str]) -> Play:
        self.plays += 1
        first = _begin(session, seed)
        done, steps = self._episode(session, first, scripted(actions))
        if not done:
            raise Refused(GateRule.ENDS, "an episode without room for one action")
        return Play(seed, tuple(done), first, tuple(steps))

    def _keep(self, play: Play) -> None:
        self.firsts[play.seed] = play.first
        for turn, step in enumerate(play.steps, start=1):
            self.record[play.seed, play.actions[:turn]] = step

    def _recall(self, seed: int, policy: Policy) -> tuple[Play | None, Policy]:
        """The play as far as it is on record: all of it, or None and the policy that goes on where the record ends."""
        first = self.firsts.get(seed)
        if first is None:
            return None, policy
        actions: list[str] = []
        steps: list[StepResult] = []
        while len(steps) < self.cap and not (steps and (steps[-1].terminated or steps[-1].truncated)):
            action = policy(first, steps[-1].observation if steps else first, len(steps))
            if action is None:
                break
            actions.append(action)
            step = self.record.get((seed, tuple(actions)))
            if step is None:
                return None, _resumed(actions, policy)
            steps.append(step)
        return Play(seed, tuple(actions), first, tuple(steps)), policy

    def repeat(self, recorded: Sequence[Play], rule: GateRule) -> list[Play]:
        """Plays recorded actions again, all on one object that is reset in between, and once before without a step."""
        self.plays += len(recorded)
        again = []
        try:
            with self.sandbox.open(self.source, max_turns=self.max_turns) as session:
                _begin(session, recorded[-1].seed)
                for play in recorded:
                    first = _begin(session, play.seed)
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

    def _check_cpu(self) -> None:
        """Each call has its limit, and a judgement has hundreds of them: a design that uses up most of each would hold its worker
        for hours. Where there are no cgroups this sees ended jails only."""
        now_s = time.monotonic()
        if now_s - self.looked_s < LOOK_S:
            return
        self.looked_s = now_s
        used_s = self.sandbox.cpu_s() - self.cpu_began_s
        if used_s > CPU_S:
            told = f"{self.plays} plays took {used_s:.0f} s of CPU time, allowed are {CPU_S:g} s: do less work in a call"
            raise Refused(GateRule.JAIL, told, {"cpu_s": used_s})

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


def _begin(session: Session, seed: int) -> str:
    """The first observation of an episode. Raises Refused where reset's info tells something."""
    first = session.reset(seed)
    if not session.first_info_empty:
        raise Refused(GateRule.INFO, f"seed {seed}: reset's info holds something")
    return first


def refusal(end: SessionEnd, where: str, rule: GateRule | None = None) -> Refused | GateInterrupted:
    """What the end of a session means for the design."""
    if is_infrastructure(end.reason):
        return GateInterrupted(f"{where}: {end}")
    if end.kind in (ErrorKind.TYPES, ErrorKind.NONFINITE) and rule is not GateRule.REPLAY:
        return Refused(GateRule.TYPES, f"{where}: {end.evidence}")
    if rule is not None:
        return Refused(rule, f"{where}: {end}")
    return Refused(GateRule.RUNS if end.reason is EndReason.ENV_ERROR else GateRule.JAIL, f"{where}: {end.evidence}")


def _resumed(actions: Sequence[str], policy: Policy) -> Policy:
    """A policy whose first actions are decided already."""
    return lambda first, observation, turn: actions[turn] if turn < len(actions) else policy(first, observation, turn)


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
