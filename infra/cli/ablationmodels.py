"""The evaluations of an ablation: which suites, how many instances, and what of them was seen before.

In: model folders. Out: ModelEvaluations from children, kept below the ablation's folder so that none is made twice. Called by
infra.cli.ablating. Choices (which pool size is best, the learning curve) are made on one set of instances, `CHOICE`, and told on
another, `REPORT`. Raises AblationError, StageTimeoutError, SettingsError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.ablation.frontier import PLAYS, FrontierPoint, count_wins
from infra.ablation.results import ArmResult
from infra.cli.children import Child, run_children
from infra.durable import write_whole
from infra.evaluations import ModelEvaluation, pack_bits, read_evaluations, suite_digest
from infra.policystore import files_digest, policy_files
from infra.report.interval import paired_difference
from infra.runs import find_folder
from infra.suites import REASONING_GYM, SuiteItem, load_suite, suite_lines
from infra.suites.canonical import read_digests
from schemas.errors import SettingsError
from schemas.settings import Recipe

CHOICE, REPORT, FRONTIER = "choice", "report", "frontier"
CHOICE_SEEDS = 2
AT_ONCE = 2
NANO = "nano"
NANO_REPORT = {NANO: 20, "nano-sizes": 22, "nano-new": 24, REASONING_GYM: 40}  # instances of each environment
QUICK_REPORT = {NANO: 16}


@dataclass(frozen=True)
class Plays:
    """Models on one set of instances."""

    models: tuple[Path, ...]
    suite: str
    salt: str
    seeds: int


@dataclass(frozen=True)
class Evaluator:
    """Evaluates by `spade eval`, one child a suite."""

    recipe: str
    pairs: tuple[str, ...]  # the order's overrides of it
    folder: Path
    limit_s: float
    quick: bool
    digest: str  # of the recipe's keys: what was evaluated under another recipe is not taken for this one's
    say: Callable[[str], None]

    def evaluate(self, name: str, models: Sequence[Path], base: Recipe) -> list[ModelEvaluation]:
        """All models on the choosing instances of the recipe's suite, then the last model on the reported ones of each suite."""
        plays = [Plays(tuple(models), base.evaluation.suite, CHOICE, CHOICE_SEEDS)]
        due = reported(base, quick=self.quick)
        plays += [Plays(tuple(models[-1:]), suite, REPORT, seeds) for suite, seeds in due.items()]
        self.play(name, plays)
        return [found for one in plays for found in read_evaluations(self.file(name, one))]

    def play(self, name: str, plays: Sequence[Plays]) -> None:
        """What of these is not there yet, two children at a time, as two cores have room for."""
        lacking = [one for one in plays if not self._is_there(name, one)]
        for start in range(0, len(lacking), AT_ONCE):
            children = [self._child(name, one) for one in lacking[start : start + AT_ONCE]]
            run_children(children, self.limit_s, self.say)

    def openings(self, suite: str, salt: str, instances: int) -> list[str]:
        """What each instance shows first, as digests."""
        return read_digests(self._openings_file(suite, salt, instances // len(load_suite(suite))))

    def census(self, base: Recipe) -> set[str]:
        """Digests of what the warm start's plays showed first; none of a model that is not the committed nano model."""
        from trainer.nano.build import MODEL_FOLDER

        if find_folder(base.model.path).resolve() != MODEL_FOLDER.resolve():
            return set()
        file = self.folder / "evaluations" / "census.json"
        if not file.exists():
            log = self.folder / "logs" / "census.log"
            child = Child(["nano", "census", "--out", str(file)], log, "census of the warm start")
            run_children([child], self.limit_s, self.say)
        return set(read_digests(file))

    def _openings_file(self, suite: str, salt: str, seeds: int) -> Path:
        digest = suite_digest(load_suite(suite))[:12]
        return self.folder / "evaluations" / f"openings-{Path(suite).stem}-{digest}-{salt}-{seeds}.json"

    def file(self, name: str, plays: Plays) -> Path:
        return self.folder / "evaluations" / f"{name}-{Path(plays.suite).stem}-{self.digest}-{plays.salt}-{plays.seeds}.json"

    def _is_there(self, name: str, plays: Plays) -> bool:
        """Whether these models have been evaluated so on this suite, and what the instances show first is known."""
        file = self.file(name, plays)
        if not file.exists() or not self._openings_file(plays.suite, plays.salt, plays.seeds).exists():
            return False
        suite = suite_digest(load_suite(plays.suite))
        return [(one.model_digest, one.suite_digest) for one in read_evaluations(file)] == [
            (files_digest(model, policy_files(model)), suite) for model in plays.models
        ]

    def _child(self, name: str, plays: Plays) -> Child:
        file = self.file(name, plays)
        file.parent.mkdir(parents=True, exist_ok=True)
        openings = self._openings_file(plays.suite, plays.salt, plays.seeds)
        arguments = [
            "eval", *map(str, plays.models), "--suite", plays.suite, "--recipe", self.recipe, "--seeds", str(plays.seeds),
            "--salt", plays.salt, "--out", str(file), "--openings", str(openings),
            *(part for pair in self.pairs for part in ("--set", pair)),
            *(("--set", "evaluation.limit=0") if plays.salt == FRONTIER else ()),  # a limit is of suites: all designs are due
        ]  # fmt: skip
        told = f"evaluation of {name} on {Path(plays.suite).stem} ({plays.salt})"
        return Child(arguments, self.folder / "logs" / f"eval-{file.stem}.log", told)


def measure_frontier(
    evaluator: Evaluator,
    name: str,
    policies: Mapping[int, Path],
    due: Mapping[int, list[int]],
    designs: Mapping[int, Sequence[SuiteItem]],
) -> list[FrontierPoint]:
    """Each policy, by step, on the designs of its time, so many plays each that a win rate can be told. `due` are their
    generations."""
    plays = {}
    for step, policy in policies.items():
        if designs[step]:
            suite = evaluator.folder / "evaluations" / f"designs-{name}-{step}.jsonl"
            suite.parent.mkdir(parents=True, exist_ok=True)
            write_whole(suite, suite_lines(designs[step]))
            plays[step] = Plays((policy,), str(suite), FRONTIER, PLAYS)
    evaluator.play(name, list(plays.values()))
    found = {step: read_evaluations(evaluator.file(name, one))[0] for step, one in plays.items()}
    return [
        FrontierPoint(step=step, generations=due[step], plays=PLAYS, wins=count_wins(one.results, len(designs[step])))
        for step, one in found.items()
    ]


def reported(base: Recipe, *, quick: bool) -> dict[str, int]:
    """Suite -> instances of each environment that the table stands on."""
    if base.evaluation.suite == NANO:
        return dict(QUICK_REPORT if quick else NANO_REPORT)
    return {base.evaluation.suite: base.evaluation.seeds_per_item}


def require_pairing(results: Iterable[ArmResult], base: Recipe, *, quick: bool) -> None:
    """Raises SettingsError where a result that stands was evaluated on other instances than the arms that are still due will be,
    or where the recipe cuts a suite short, since environments would then have unequal numbers of instances."""
    due = {}
    for suite, seeds in reported(base, quick=quick).items():
        items, limit = load_suite(suite), base.evaluation.limit
        due[suite] = (suite_digest(items), len(items) * seeds)
        most = len(items) * max(seeds, CHOICE_SEEDS)
        if 0 < limit < most:
            raise SettingsError(
                f"evaluation.limit is {limit}, and an ablation plays all {most} instances of suite {suite}",
                "Set it to 0; evaluation.suite may name a .jsonl file with fewer environments",
            )
    for result in results:
        found = {one.suite: (one.suite_digest, one.instances) for one in result.evaluations if one.salt == REPORT}
        for suite in sorted({*due, *found}):
            if due.get(suite) != found.get(suite):
                raise SettingsError(
                    f"{result.arm}-s{result.seed} was evaluated on {_told(found.get(suite))} of suite {suite}, and "
                    f"{_told(due.get(suite))} are due now",
                    "Give this ablation another --results folder, or move the files there away to make them again",
                )


def _told(evaluated: tuple[str, int] | None) -> str:
    """Instances and the suite's digest in words."""
    return f"{evaluated[1]} instances ({evaluated[0][:8]})" if evaluated is not None else "none"


def against(base: ArmResult, found: Sequence[ModelEvaluation]) -> dict[str, list[float]]:
    """Suite -> the paired difference to the base model on the reported instances, and its 95 % interval over environments."""
    gaps = {}
    for one in found:
        before = base.evaluation(one.suite, one.salt)
        if one.salt == REPORT and before is not None and before.suite_digest == one.suite_digest:
            items = load_suite(one.suite)
            clusters = [items[number % len(items)].env_id for number in range(one.instances)]
            gap = paired_difference(before.results, one.results, clusters)
            gaps[one.suite] = [gap.mean, gap.low, gap.high]
    return gaps


def mark_seen(found: Sequence[ModelEvaluation], evaluator: Evaluator, seen: Collection[str]) -> dict[str, str]:
    """Suite -> a bit for each reported instance, 1 where its data is among `seen`. One that showed no data counts as seen."""
    known = {*seen, ""}
    return {
        one.suite: pack_bits([digest in known for digest in evaluator.openings(one.suite, one.salt, one.instances)])
        for one in found
        if one.salt == REPORT
    }
