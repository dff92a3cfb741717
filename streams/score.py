"""Score stage: the plays of one environment at one step, judged together when all are in.

In: rollout-finished and audit-finished (held until their environment's step is scored); control: slots-closed (sources for
audits), own env-scored and audit-requested. Out: audit-requested, env-scored. Called by streams/app.py. Pure.
A play that infrastructure lost is no data, and neither is its partner in the other arm; published counted a lost hint play
as 0 and dropped a lost plain play, and does so here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from schemas import ids
from schemas.common import version_span
from schemas.design import SlotsClosed
from schemas.rollout import (
    EARLIER,
    EARLIER_HINTED,
    EARLIER_PLAIN,
    HINTED,
    PLAIN,
    PROBE_HINTED,
    PROBE_PLAIN,
    PROBES,
    AuditFinished,
    AuditRequested,
    RolloutFinished,
)
from schemas.score import ArmScore, EnvScored, PlayReturn
from schemas.settings import Recipe
from streams.regret import Regret, mean, paired_regret, unpaired_regret
from streams.stage import Emit, Join, Outputs, Position, Positioned

GroupKey = tuple[str, int, int]  # env_id, step, repeat
NON_FINITE = "non_finite"
AUDIT = "audit"
ARMS = (PLAIN, HINTED, EARLIER_PLAIN, EARLIER_HINTED, PROBE_PLAIN, PROBE_HINTED)


@dataclass
class _Group:
    """Plays of one (environment, step, repeat) as they come in."""

    expected: int
    generation: int
    plays: dict[str, tuple[RolloutFinished, Positioned]] = field(default_factory=dict)
    audits: dict[str, AuditFinished] = field(default_factory=dict)
    positions: list[Position] = field(default_factory=list)


class ScoreJoin(Join):
    """Open (environment, step) groups of one run."""

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        super().__init__(run_id, recipe)
        self._groups: dict[GroupKey, _Group] = {}
        self._scored: set[GroupKey] = set()
        self._audited: set[str] = set()
        self._sources: dict[int, dict[str, str]] = {}
        ahead = -(-self.schedule.designer_lag_max // recipe.schedule.interval)
        self._generations_kept = ahead + 2  # slots close at most this far ahead of the plays
        self._touched: set[GroupKey] = set()

    def _know(self, positioned: Positioned) -> None:
        match positioned.record:
            case EnvScored(env_id=env_id, step=step, repeat=repeat):
                self._scored.add((env_id, step, repeat))
            case AuditRequested(play_id=play_id):
                self._audited.add(play_id)
            case SlotsClosed() as slots:
                played = [*slots.members, *(probe.member for probe in slots.probes)]
                self._sources.setdefault(slots.generation, {member.env_id: member.source for member in played})
                if self.recipe.schedule.kind == "fixed":  # in the free one plays may be asked for again until the run's end
                    self._sources.pop(slots.generation - self._generations_kept, None)
                self._touched.update(self._groups)

    def _hold(self, positioned: Positioned) -> bool:
        record = positioned.record
        if not isinstance(record, RolloutFinished | AuditFinished):
            return False
        key = (record.env_id, record.step, record.repeat)
        if key in self._scored:
            return False
        group = self._groups.setdefault(key, _Group(0, record.generation))
        if isinstance(record, RolloutFinished):
            if record.play_id in group.plays:
                return False
            group.expected = record.plays_expected
            light = msgspec.structs.replace(record, tokens=b"", logprobs=b"", turns=[])
            group.plays[record.play_id] = (light, _without_tokens(positioned, light))
        elif record.play_id in group.audits:
            return False
        else:
            group.audits[record.play_id] = record
        group.positions.append(positioned.position)
        self._touched.add(key)
        return True

    def _advance(self) -> Outputs:
        outputs = Outputs()
        for key in sorted(self._touched & self._groups.keys()):
            group = self._groups[key]
            outputs.records += self._request_audits(group)
            if self._complete(group):
                outputs.records.append(Emit(self._score(key, group)))
                outputs.finished += group.positions
                self._scored.add(key)
                del self._groups[key]
        self._touched.clear()
        return outputs

    def _audit_due(self, play: RolloutFinished) -> bool:
        return not play.lost and ids.chosen(play.play_id, self.recipe.rollout.audit_share, AUDIT)

    def _request_audits(self, group: _Group) -> list[Emit]:
        emits = []
        for play, positioned in group.plays.values():
            wanted = self._audit_due(play) and play.play_id not in self._audited
            source = self._sources.get(play.generation, {}).get(play.env_id)
            if not wanted or source is None:
                continue
            self._audited.add(play.play_id)
            emits.append(
                Emit(
                    AuditRequested(
                        run_id=self.run_id,
                        event_id=ids.event_id("audit-requested", play.play_id),
                        causation_id=play.event_id,
                        play_id=play.play_id,
                        env_id=play.env_id,
                        step=play.step,
                        generation=play.generation,
                        source=source,
                        play=positioned.reference,
                        repeat=play.repeat,
                    )
                )
            )
        return emits

    def _complete(self, group: _Group) -> bool:
        if not group.expected or len(group.plays) < group.expected:
            return False
        return all(play_id in group.audits for play_id, (play, _) in group.plays.items() if self._audit_due(play))

    def _score(self, key: GroupKey, group: _Group) -> EnvScored:
        env_id, step, repeat = key
        plays = sorted(group.plays.values(), key=lambda pair: (pair[0].arm, pair[0].index))
        counted = _counted(plays, paired=self.recipe.rollout.paired)
        arms = [_arm(arm, counted) for arm in ARMS if any(play.arm == arm for play, _ in plays)]
        probe = any(play.arm in PROBES for play, _ in plays)
        own = [play for play, _ in counted]
        regret = _paired_arms(own, PROBE_HINTED, PROBE_PLAIN) if probe else _regret(own, paired=self.recipe.rollout.paired)
        earlier = _paired_arms(own, EARLIER_HINTED, EARLIER_PLAIN)
        lost = sum(bool(play.lost) for play, _ in plays)
        return EnvScored(
            run_id=self.run_id,
            event_id=ids.event_id("scored", env_id, step, *([repeat] if repeat else [])),
            causation_id=plays[-1][0].event_id,
            env_id=env_id,
            step=step,
            generation=group.generation,
            arms=arms,
            lost=lost,
            dropped=len(plays) - lost - sum(not play.lost for play, _ in counted),
            pairs=regret.pairs,
            regret=regret.mean,
            regret_se=regret.error,
            evicted=_eviction(group),
            earlier_regret=earlier.mean,
            earlier_regret_se=earlier.error,
            earlier_pairs=earlier.pairs,
            repeat=repeat,
            probe=probe,
        )


def _without_tokens(positioned: Positioned, light: RolloutFinished) -> Positioned:
    """The same place with the episode's tokens left out, so that open groups stay small."""
    return Positioned(positioned.topic, positioned.partition, positioned.offset, light)


Plays = list[tuple[RolloutFinished, Positioned]]


def _counted(plays: Plays, *, paired: bool) -> Plays:
    """The plays that count: finite and not lost; paired: nor partner of a lost one.

    Unpaired (published): lost hint plays count as 0 in the arm's mean, and are never among its plays.
    """
    checks = [pair for pair in plays if pair[0].arm in EARLIER | PROBES]
    own = [pair for pair in plays if pair[0].arm not in EARLIER | PROBES]
    if paired:
        return _paired(own) + _paired(checks)
    scored = [
        (msgspec.structs.replace(play, episode_return=0.0, won=False) if play.lost else play, positioned)
        for play, positioned in own
        if _is_sound(play) and (not play.lost or play.arm == HINTED)
    ]
    return scored + _paired(checks)


def _paired(plays: Plays) -> Plays:
    """The sound plays of one policy's two arms, without those whose partner was lost."""
    lost = {play.index for play, _ in plays if play.lost}
    both = len({play.arm for play, _ in plays}) > 1
    return [(play, at) for play, at in plays if _is_sound(play) and not play.lost and not (both and play.index in lost)]


def _is_sound(play: RolloutFinished) -> bool:
    return math.isfinite(play.episode_return) and play.end_reason != NON_FINITE


def _arm(arm: str, counted: Plays) -> ArmScore:
    own = [(play, positioned) for play, positioned in counted if play.arm == arm]
    plays = [
        PlayReturn(
            play_id=play.play_id,
            index=play.index,
            episode_return=play.episode_return,
            won=play.won,
            reference=positioned.reference,
            versions=version_span(play.spans),
        )
        for play, positioned in own
        if not play.lost
    ]
    return ArmScore(
        arm=arm,
        plays=plays,
        mean=mean([play.episode_return for play, _ in own]),
        win_rate=mean([float(play.won) for play, _ in own]),
    )


def _regret(counted: list[RolloutFinished], *, paired: bool) -> Regret:
    if paired:
        return _paired_arms(counted, HINTED, PLAIN)
    hinted = [play.episode_return for play in counted if play.arm == HINTED]
    return unpaired_regret(hinted, [play.episode_return for play in counted if play.arm == PLAIN])


def _paired_arms(counted: list[RolloutFinished], with_hint: str, without: str) -> Regret:
    """What the hint gains between these two arms; none where no such plays were asked for."""
    hinted = [(play.env_seed, play.episode_return) for play in counted if play.arm == with_hint]
    return paired_regret(hinted, [(play.env_seed, play.episode_return) for play in counted if play.arm == without])


def _eviction(group: _Group) -> str:
    """The reason, the same whatever came first."""
    for play_id in sorted(group.plays):
        play, _ = group.plays[play_id]
        if not play.lost and (play.end_reason == NON_FINITE or not math.isfinite(play.episode_return)):
            return f"{NON_FINITE}: play {play_id}"
    for play_id in sorted(group.audits):
        audit = group.audits[play_id]
        if not audit.lost and not audit.equal:
            return f"audit: play {play_id} differs: {audit.difference}"
    return ""
