"""How a generation closes: every design's reward and advantage over its window, and the generation's summary.

In: slots-closed, the scores of all K steps, the skills' moving averages. Out: GenerationClosed. Called by streams/batch.py. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from schemas import ids
from schemas.design import Member, Probe, RejectedDesign, SlotsClosed
from schemas.rollout import HINTED, PLAIN, PROBE_HINTED, PROBE_PLAIN
from schemas.score import EnvScored, GenerationClosed, PlayReturn, ProbedEnvironment, ScoredDesign
from schemas.settings import Recipe
from streams.advantage import centred, designer_scale, z_scores
from streams.diversity import repeat_share, vendi_share
from streams.regret import Averages, Regret, designer_reward, hint_helps, learning_potential, mean, population_variance

Scores = Mapping[tuple[str, int], EnvScored]  # by (env_id, step)


@dataclass(frozen=True)
class Window:
    """One environment's scores over its generation's steps, in step order."""

    scores: Sequence[EnvScored]
    first_step: int

    @property
    def plain(self) -> list[PlayReturn]:
        return self._plays(PLAIN)

    @property
    def hinted(self) -> list[PlayReturn]:
        return self._plays(HINTED)

    @property
    def evicted(self) -> str:
        return next((scored.evicted for scored in self.scores if scored.evicted), "")

    @property
    def regret(self) -> Regret:
        """Of the generation step, the only one with a hint arm."""
        for scored in self.scores:
            if scored.step == self.first_step:
                return Regret(scored.regret, scored.regret_se, scored.pairs)
        return Regret()

    @property
    def earlier_regret(self) -> Regret:
        """What the hint gained for the frozen earlier policy, at the generation step."""
        for scored in self.scores:
            if scored.step == self.first_step:
                return Regret(scored.earlier_regret, scored.earlier_regret_se, scored.earlier_pairs)
        return Regret()

    def _plays(self, arm: str) -> list[PlayReturn]:
        return [play for scored in self.scores for score in scored.arms if score.arm == arm for play in score.plays]


def close_generation(
    run_id: str, recipe: Recipe, slots: SlotsClosed, scores: Scores, averages: Mapping[str, Averages]
) -> GenerationClosed:
    """The generation's record. `scores` holds every score of its window; `averages` those of the generations closed before."""
    first = slots.generation * recipe.schedule.interval
    windows = {
        member.env_id: Window(
            [
                scores[member.env_id, step]
                for step in range(first, first + recipe.schedule.interval)
                if (member.env_id, step) in scores
            ],
            first,
        )
        for member in slots.members
    }
    designs = [_member_design(recipe, member, windows[member.env_id], averages) for member in slots.members]
    designs += [_rejected_design(recipe, rejected) for rejected in slots.rejected]
    designs = _with_advantages(recipe, designs)
    probes = [_probed(recipe, probe, scores[probe.member.env_id, first], averages) for probe in slots.probes]
    return _summary(run_id, slots, designs, windows, probes)


def _member_design(recipe: Recipe, member: Member, window: Window, averages: Mapping[str, Averages]) -> ScoredDesign:
    returns = [play.episode_return for play in window.plain]
    regret, earlier = (window.regret, window.earlier_regret) if member.hint.strip() else (Regret(), Regret())
    uncredited = bool(recipe.rollout.earlier_plays) and not hint_helps(earlier, recipe.design.regret_bound)
    credited = Regret(min(0.0, regret.mean), regret.error, regret.pairs) if uncredited else regret
    reward = _reward(recipe, member, returns, credited, averages)
    return ScoredDesign(
        env_id=member.env_id,
        slot=member.slot,
        design_attempt=member.design_attempt,
        skill=member.skill,
        document_id=member.document_id,
        group=member.group,
        proposal=member.proposal,
        valid=True,
        w=mean(returns),
        win_rate=mean([float(play.won) for play in window.plain]),
        hint_win_rate=mean([float(play.won) for play in window.hinted]),
        regret=regret.mean,
        regret_se=regret.error,
        reward=0.0 if window.evicted or not returns else reward,
        advantage=0.0,
        # Nothing is known of a design all of whose plays were lost: it is neither rewarded nor blamed.
        trained=recipe.designer == "trained" and (bool(returns) or bool(window.evicted)),
        evicted=window.evicted or ("" if returns else "lost: no play was finished"),
        repeated=member.repeated,
        identical=member.identical,
        earlier_regret=earlier.mean,
        earlier_regret_se=earlier.error,
        uncredited=uncredited,
        versions=member.versions,
        pairs=regret.pairs,
    )


def _reward(recipe: Recipe, member: Member, returns: Sequence[float], regret: Regret, averages: Mapping[str, Averages]) -> float:
    """What a design earns for these plain returns and this regret."""
    w = mean(returns)
    reward = designer_reward(
        recipe.design.signal,
        w,
        regret,
        recipe.design.regret_bound,
        variance=population_variance(returns),
        potential=learning_potential(averages.get(member.skill), w),
        clip_w=recipe.algorithm == "mended",
    )
    return reward - abs(reward) * recipe.design.identical_penalty if member.identical else reward


def _rejected_design(recipe: Recipe, rejected: RejectedDesign) -> ScoredDesign:
    return ScoredDesign(
        env_id=rejected.env_id,
        slot=rejected.slot,
        design_attempt=rejected.design_attempt,
        skill=rejected.skill,
        document_id="",
        group=rejected.group,
        proposal=rejected.proposal,
        valid=False,
        w=0.0,
        win_rate=0.0,
        hint_win_rate=0.0,
        regret=0.0,
        regret_se=0.0,
        reward=0.0,
        advantage=0.0,
        trained=recipe.designer == "trained",
        versions=rejected.versions,
    )


def _with_advantages(recipe: Recipe, designs: Sequence[ScoredDesign]) -> list[ScoredDesign]:
    """The designs with advantages over the trained ones; the scale by the recipe's planned counts, not by what came."""
    trained = [design for design in designs if design.trained]
    rewards = [design.reward for design in trained]
    groups = [design.skill if recipe.design.advantage_group == "skill" else design.group for design in trained]
    if recipe.design.advantage == "z-score":
        advantages = z_scores(rewards, groups)
    else:
        advantages = centred(rewards, groups, planned_scale(recipe))
    by_env = {design.env_id: advantage for design, advantage in zip(trained, advantages, strict=True)}
    return [msgspec.structs.replace(design, advantage=by_env.get(design.env_id, 0.0)) for design in designs]


def planned_scale(recipe: Recipe) -> float:
    """The designer's scale by the planned agent samples a step and designs a generation."""
    interval = recipe.schedule.interval
    hinted = recipe.rollout.hint_plays / interval if recipe.rollout.train_hint_arm else 0.0
    environments = recipe.design.environments
    return designer_scale(environments, environments * (recipe.rollout.plain_plays + hinted), interval)


def _probed(recipe: Recipe, probe: Probe, scored: EnvScored, averages: Mapping[str, Averages]) -> ProbedEnvironment:
    """How an earlier environment stands by its probe plays, and what its design would earn by them."""
    plays = {arm.arm: arm.plays for arm in scored.arms}
    plain, hinted = plays.get(PROBE_PLAIN, []), plays.get(PROBE_HINTED, [])
    returns = [play.episode_return for play in plain]
    regret = Regret(scored.regret, scored.regret_se, scored.pairs) if probe.member.hint.strip() else Regret()
    return ProbedEnvironment(
        env_id=probe.member.env_id,
        generation=probe.generation,
        slot=probe.member.slot,
        skill=probe.member.skill,
        plays=len(plain) + len(hinted),
        lost=scored.lost,
        w=mean(returns),
        win_rate=mean([float(play.won) for play in plain]),
        hint_win_rate=mean([float(play.won) for play in hinted]),
        regret=regret.mean,
        regret_se=regret.error,
        pairs=regret.pairs,
        reward=_reward(recipe, probe.member, returns, regret, averages) if returns and not scored.evicted else 0.0,
        evicted=scored.evicted,
    )


def _summary(
    run_id: str,
    slots: SlotsClosed,
    designs: list[ScoredDesign],
    windows: Mapping[str, Window],
    probes: list[ProbedEnvironment],
) -> GenerationClosed:
    valid = [design for design in designs if design.valid]
    known = [design for design in valid if not design.evicted]  # of the others nothing was measured, or nothing that counts
    return GenerationClosed(
        run_id=run_id,
        event_id=ids.event_id("generation-closed", run_id, slots.generation),
        causation_id=slots.event_id,
        generation=slots.generation,
        designs=designs,
        proposed=slots.proposed,
        valid=len(valid),
        rejected_by_rule=slots.rejected_by_rule,
        missing=len(slots.missing),
        duplicates=len(slots.duplicates),
        win_rate=mean([design.win_rate for design in known]),
        hint_win_rate=mean([design.hint_win_rate for design in known]),
        regret=mean([design.regret for design in known]),
        regret_se=math.sqrt(math.fsum(design.regret_se**2 for design in known)) / max(1, len(known)),
        designer_reward=mean([design.reward for design in known]),
        repeats=repeat_share([member.repeated for member in slots.members]),
        vendi=vendi_share([member.source for member in slots.members]),
        lost=sum(scored.lost for window in windows.values() for scored in window.scores),
        empty="" if slots.members else _empty_cause(slots),
        probes=probes,
        repeated=_repeated(slots),
    )


def _repeated(slots: SlotsClosed) -> dict[str, int]:
    """Which designs this generation's repeat, and how often; the dropped near-duplicates count as the members do."""
    named = [one.repeats for one in slots.members] + [one.repeats for one in slots.duplicates]
    return dict(sorted(Counter(name for name in named if name).items()))


def _empty_cause(slots: SlotsClosed) -> str:
    rules = ", ".join(f"{rule} {count}" for rule, count in slots.rejected_by_rule.items())
    return f"no environment out of {slots.proposed} designs ({rules or 'none proposed'})"
