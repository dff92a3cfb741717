"""The table of an ablation, from the results' files alone.

In: results. Out: rows. Called by `spade ablate`. Pure. Instances whose data any run of the table, or the warm start, has shown
are left out for all arms alike, so that all rows stand on the same instances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from infra.ablation.arms import ARMS, BASE, SELF_PLAY, Arm
from infra.ablation.budget import is_short
from infra.ablation.difference import Crossed, crossed_interval
from infra.ablation.frontier import Rise, rise
from infra.ablation.results import ArmResult, GenerationResult
from infra.evaluations import ModelEvaluation, unpack_bits
from schemas.errors import SettingsError

REPORT, CHOICE = "report", "choice"
WANTED = 2000  # instances that nothing has shown, of the suite that arms are compared on
ENDS = 5  # generations at each end of a run that diversity and frontier are told for


@dataclass(frozen=True)
class Diversity:
    """Means over seeds of the first and the last generations."""

    vendi: tuple[float, float]
    repeats: tuple[float, float]
    frontier: tuple[float, float]
    regret: tuple[float, float]
    kinds: tuple[float, float]
    helped: tuple[float, float]
    reacted: float  # share of generations whose requests the collapse control changed
    growth: float  # nano: last over first mean size, mean over the families that both ends have; 0 where there is none


@dataclass(frozen=True)
class Row:
    """One arm."""

    arm: Arm
    seeds: int
    suites: Mapping[str, Crossed]  # win rate by suite
    over_base: Crossed | None  # on the first suite, paired
    under_default: Crossed | None  # the default self-play minus this arm, on the seeds that both have
    choice: float = 0.0  # mean win rate on the instances that choices are made on
    episodes: float = 0.0
    sampled_tokens: float = 0.0
    trained_tokens: float = 0.0
    minutes: float = 0.0
    short: str = ""  # where its budget was missed
    diversity: Diversity | None = None
    frontier: Mapping[int, float] = field(default_factory=dict)  # step -> share at the frontier by many plays, mean over seeds
    rise: Rise | None = None  # of that share over the run


@dataclass(frozen=True)
class Ablation:
    """The whole table."""

    rows: list[Row]
    suites: list[str]
    instances: dict[str, int]
    left_out: dict[str, int]
    best_fixed: str = ""
    episodes: int = 0
    steps: int = 0
    notes: list[str] = field(default_factory=list)


def make_table(results: Sequence[ArmResult]) -> Ablation:
    """The table of these results. Raises SettingsError where the base is missing, or results can't stand side by side."""
    by_arm: dict[str, list[ArmResult]] = defaultdict(list)
    for result in results:
        by_arm[result.arm].append(result)
    if BASE not in by_arm:
        raise SettingsError(
            "no result of the base model stands there", "`spade ablate` makes it first; name the folder with --results"
        )
    base = by_arm[BASE][0]
    trained = [result for result in results if result.arm != BASE]
    _require_one_budget(trained)
    suites = [one.suite for one in base.evaluations if one.salt == REPORT]
    kept = {suite: _kept(suite, results) for suite in suites}
    for suite, places in kept.items():
        if not places:
            raise SettingsError(f"every instance of suite {suite} was seen before", "Give the suite more instances")
    rows = [_row(arm, by_arm[arm.name], by_arm, kept, base) for arm in ARMS if arm.name in by_arm]
    fixed = [row for row in rows if row.arm.fixed]
    return Ablation(
        rows=rows,
        suites=suites,
        instances={suite: len(places) for suite, places in kept.items()},
        left_out={suite: _count(suite, base) - len(places) for suite, places in kept.items()},
        best_fixed=max(fixed, key=lambda row: row.choice).arm.name if fixed else "",
        episodes=trained[0].planned_episodes if trained else 0,
        steps=trained[0].steps if trained else 0,
        notes=[*_notes(results), *_few(suites[0], len(kept[suites[0]]))],
    )


def _require_one_budget(trained: Sequence[ArmResult]) -> None:
    for result in trained[1:]:
        first = trained[0]
        for name in ("planned_episodes", "steps", "base_recipe"):
            ours, theirs = getattr(result, name), getattr(first, name)
            if ours != theirs:
                raise SettingsError(
                    f"{first.arm}-s{first.seed} has {name} {theirs}, {result.arm}-s{result.seed} has {ours}: budgets differ",
                    "Keep the results of one ablation in one folder",
                )


def _found(result: ArmResult, suite: str, salt: str = REPORT) -> ModelEvaluation:
    one = result.evaluation(suite, salt)
    if one is None:
        raise SettingsError(
            f"{result.arm}-s{result.seed} has no evaluation on suite {suite} ({salt})", "Move its file away and run it again"
        )
    return one


def _count(suite: str, base: ArmResult) -> int:
    return _found(base, suite).instances


def _kept(suite: str, results: Sequence[ArmResult]) -> list[int]:
    """The places of the instances that nothing in the table has shown before. Raises SettingsError where results don't pair."""
    first = _found(results[0], suite)
    seen = [False] * first.instances
    for result in results:
        own = _found(result, suite)
        if (own.suite_digest, own.instances) != (first.suite_digest, first.instances):
            raise SettingsError(
                f"{result.arm}-s{result.seed} was evaluated on another suite {suite} than {results[0].arm}-s{results[0].seed}",
                "Move the older files away and run their arms again",
            )
        if suite in result.seen:
            seen = [a or bool(b) for a, b in zip(seen, unpack_bits(result.seen[suite], first.instances), strict=True)]
    return [place for place, one in enumerate(seen) if not one]


def _row(
    arm: Arm, own: Sequence[ArmResult], by_arm: Mapping[str, Sequence[ArmResult]], kept: Mapping[str, list[int]], base: ArmResult
) -> Row:
    first = next(iter(kept))
    default = {result.seed: result for result in by_arm.get(SELF_PLAY, ())}
    both = [result for result in own if result.seed in default]
    short = [result for result in own if arm.name != BASE and is_short(result.trained_episodes, result.planned_episodes)]
    return Row(
        arm=arm,
        seeds=len(own),
        suites={suite: _interval(suite, places, [(None, result) for result in own]) for suite, places in kept.items()},
        over_base=_interval(first, kept[first], [(base, result) for result in own]) if arm.name != BASE else None,
        under_default=_interval(first, kept[first], [(result, default[result.seed]) for result in both])
        if both and arm.name not in (BASE, SELF_PLAY)
        else None,
        choice=_mean([_found(result, first, CHOICE).win_rate for result in own]),
        episodes=_mean([result.trained_episodes for result in own]),
        sampled_tokens=_mean([result.sampled_tokens for result in own]),
        trained_tokens=_mean([result.trained_tokens for result in own]),
        minutes=_mean([result.minutes for result in own]),
        short=", ".join(f"seed {one.seed}: {one.trained_episodes} of {one.planned_episodes}" for one in short),
        diversity=_diversity(own) if any(result.generations for result in own) else None,
        frontier=_frontier(own),
        rise=rise([result.frontier for result in own if result.frontier]),
    )


def _frontier(own: Sequence[ArmResult]) -> dict[int, float]:
    """The share at the frontier at the steps that all seeds have."""
    measured = [{point.step: point.share for point in result.frontier} for result in own if result.frontier]
    common = sorted(set.intersection(*(set(one) for one in measured))) if measured else []
    return {step: _mean([one[step] for one in measured]) for step in common}


def _interval(suite: str, places: Sequence[int], pairs: Sequence[tuple[ArmResult | None, ArmResult]]) -> Crossed:
    """Mean of after - before (of after alone where there is no before) over the kept instances and the pairs' seeds. An
    instance's environment is told by its place: a suite need not be there for its table to be made."""
    environments = _found(pairs[0][1], suite).items
    clusters = [str(place % environments) for place in places]
    by_seed = []
    for before, after in pairs:
        won = _found(after, suite).results
        theirs = bytes(len(won)) if before is None else _found(before, suite).results
        by_seed.append([float(won[place] - theirs[place]) for place in places])
    return crossed_interval(by_seed, clusters)


def _diversity(own: Sequence[ArmResult]) -> Diversity:
    def ends(name: str) -> tuple[float, float]:
        runs = [_played(result.generations) for result in own]
        return (
            _mean([_mean([getattr(one, name) for one in run[:ENDS]]) for run in runs if run]),
            _mean([_mean([getattr(one, name) for one in run[-ENDS:]]) for run in runs if run]),
        )

    growths = [growth for result in own if (growth := _growth(_played(result.generations)))]
    names = ("vendi", "repeats", "frontier", "regret", "kinds", "helped")
    reacted = _mean([float(one.reacted) for result in own for one in result.generations])
    return Diversity(**{name: ends(name) for name in names}, reacted=reacted, growth=_mean(growths))


def _growth(run: Sequence[GenerationResult]) -> float:
    """How much larger a family's designs are at the run's end than at its beginning, on average over families."""
    first, last = (_sizes(part) for part in (run[:ENDS], run[-ENDS:]))
    return _mean([last[family] / first[family] for family in first if family in last and first[family]])


def _sizes(generations: Sequence[GenerationResult]) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for one in generations:
        for family, size in one.sizes.items():
            found[family].append(size)
    return {family: _mean(sizes) for family, sizes in found.items()}


def _played(generations: Sequence[GenerationResult]) -> list[GenerationResult]:
    return [one for one in generations if one.valid]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _few(suite: str, kept: int) -> list[str]:
    return [f"Only {kept} instances of suite {suite} were never shown before; {WANTED} are wanted."] if kept < WANTED else []


def _notes(results: Sequence[ArmResult]) -> list[str]:
    commits = sorted({result.commit or "no commit" for result in results})
    notes = [f"Code: {', '.join(name[:12] + ('-dirty' if name.endswith('-dirty') else '') for name in commits)}."]
    if len(commits) > 1:
        notes.append("Arms ran on different commits: what lies between them may be part of a difference.")
    return notes
