"""The evaluations of an ablation: which suites, how many instances, and what of them was seen before.

In: model folders. Out: ModelEvaluations from children, kept below the ablation's folder so that none is made twice. Called by
infra.cli.ablating. Choices (which pool size is best, the learning curve) are made on one set of instances, `CHOICE`, and told on
another, `REPORT`. Raises AblationError, StageTimeoutError, SettingsError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.ablation.results import ArmResult
from infra.cli.children import run_child
from infra.evaluations import ModelEvaluation, pack_bits, read_evaluations
from infra.policystore import files_digest, policy_files
from infra.report.interval import paired_difference
from infra.runs import find_folder
from infra.suites import load_suite
from infra.suites.canonical import read_digests
from schemas.settings import Recipe

CHOICE, REPORT = "choice", "report"
CHOICE_SEEDS = 3
NANO = "nano"
NANO_REPORT = {NANO: 20, "nano-sizes": 22, "nano-new": 24}  # instances of each environment: more than 2,000 in all
QUICK_REPORT = {NANO: 16}


@dataclass(frozen=True)
class Evaluator:
    """Evaluates by `spade eval`, one child a suite."""

    recipe: str
    folder: Path
    limit_s: float
    quick: bool
    say: Callable[[str], None]

    def evaluate(self, name: str, models: Sequence[Path], base: Recipe) -> list[ModelEvaluation]:
        """All models on the choosing instances of the recipe's suite, then the last model on the reported ones of each suite."""
        suite = base.evaluation.suite
        found = self._play(name, models, suite, CHOICE, CHOICE_SEEDS)
        for reported, seeds in self.reported(base).items():
            found += self._play(name, models[-1:], reported, REPORT, seeds)
        return found

    def reported(self, base: Recipe) -> dict[str, int]:
        """Suite -> instances of each environment."""
        if base.evaluation.suite == NANO:
            return QUICK_REPORT if self.quick else NANO_REPORT
        return {base.evaluation.suite: base.evaluation.seeds_per_item}

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
            run_child(["nano", "census", "--out", str(file)], log, self.limit_s, self.say, "census of the warm start")
        return set(read_digests(file))

    def _openings_file(self, suite: str, salt: str, seeds: int) -> Path:
        return self.folder / "evaluations" / f"openings-{Path(suite).stem}-{salt}-{seeds}.json"

    def _play(self, name: str, models: Sequence[Path], suite: str, salt: str, seeds: int) -> list[ModelEvaluation]:
        out = self.folder / "evaluations" / f"{name}-{Path(suite).stem}-{salt}-{seeds}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        wanted = [files_digest(model, policy_files(model)) for model in models]
        openings = self._openings_file(suite, salt, seeds)
        if out.exists() and openings.exists():
            found = read_evaluations(out)
            if [one.model_digest for one in found] == wanted:
                return found
        arguments = [
            "eval", *map(str, models), "--suite", suite, "--recipe", self.recipe, "--seeds", str(seeds), "--salt", salt,
            "--out", str(out), "--openings", str(openings),
        ]  # fmt: skip
        log = self.folder / "logs" / f"eval-{out.stem}.log"
        run_child(arguments, log, self.limit_s, self.say, f"evaluation of {name} on {suite} ({salt})")
        return read_evaluations(out)


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
