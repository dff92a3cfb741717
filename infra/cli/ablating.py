"""The work of `spade ablate`: which arms and seeds are left, their runs, their evaluations, their results.

In: an order. Out: a file an arm and seed. Called by infra.cli.ablate in the main thread. Every run and evaluation is a child that
runs the real command, with a deadline; Ctrl-C ends it. Blocks for hours. Raises what children end in as AblationError.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from infra.ablation.arms import BASE, Arm, find_arm, overrides_of
from infra.ablation.budget import Budget, plan_budget, require_equal
from infra.ablation.collect import collect, read_designs, read_openings
from infra.ablation.frontier import generations_of
from infra.ablation.results import (
    ArmResult,
    CurvePoint,
    changes,
    deciding_keys,
    digest_of,
    recipe_keys,
    stands,
    write_result,
)
from infra.cli import options
from infra.cli.ablationmodels import CHOICE, Evaluator, against, mark_seen, measure_frontier, require_pairing
from infra.cli.ablationpools import make_pools, pools_place
from infra.cli.children import AblationError, Child, run_children
from infra.cli.rundir import NOTES, held, read_notes
from infra.cli.runstore import run_store
from infra.policystore import PolicyStore
from infra.runs import PROJECT, code_digest, find_folder, parse_recipe
from schemas.errors import SettingsError
from schemas.settings import Recipe

Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """What `spade ablate` was asked for."""

    recipe: str
    pairs: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: int
    folder: Path
    results: Path
    limit_s: float
    quick: bool = False


@dataclass(frozen=True)
class Job:
    """One arm under one seed that has no result yet."""

    arm: Arm
    seed: int
    pairs: tuple[str, ...]  # over the base recipe's file
    recipe: Recipe
    deciding: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.arm.name}-s{self.seed}"


@dataclass(frozen=True)
class Work:
    """What is left of an order, in the order in which it is done: seed by seed, so that the table grows evenly."""

    order: Order
    base: Recipe
    budget: Budget
    base_job: Job
    base_stands: ArmResult | None
    jobs: tuple[Job, ...]
    standing: int

    def told(self) -> Iterator[str]:
        """The plan in words."""
        budget = self.budget
        yield (
            f"ablation over recipe {self.base.name}: every arm trains {budget.episodes} episodes "
            f"({' and '.join(budget.arms)}) in {budget.steps} optimizer steps"
        )
        yield f"{self.standing} results stand in {self.order.results}, {len(self.jobs)} runs are left"
        for job in self.jobs:
            yield f"  {job.name}: {job.arm.told}"


def plan_work(order: Order) -> Work:
    """What is left to do. Raises SettingsError where budgets differ, where a result or run of another recipe stands there, or a
    result on other instances."""
    base = options.read_recipe(order.recipe, list(order.pairs))
    arms = [find_arm(name) for name in order.arms]
    seeds = range(base.seed, base.seed + order.seeds)
    places = pools_place(order.folder, base)  # once: it reads the whole model
    every = [_job(order, base, arm, seed, places) for seed in seeds for arm in arms if arm.name != BASE]
    budget = require_equal({job.name: job.recipe for job in every} or {BASE: base})
    found = {job.name: stands(order.results, job.arm.name, job.seed, job.deciding) for job in every}
    jobs = tuple(job for job in every if found[job.name] is None)
    for job in jobs:
        _require_own(order, job)
    base_job = _job(order, base, find_arm(BASE), base.seed, places)
    base_stands = stands(order.results, BASE, base.seed, base_job.deciding)
    standing = [result for result in (*found.values(), base_stands) if result is not None]
    require_pairing(standing, base, quick=order.quick)
    return Work(
        order=order,
        base=base,
        budget=budget,
        base_job=base_job,
        base_stands=base_stands,
        jobs=jobs,
        standing=sum(result is not None for result in found.values()),
    )


def _job(order: Order, base: Recipe, arm: Arm, seed: int, places: Path) -> Job:
    over = overrides_of(arm, base, seed, places)
    pairs = (*order.pairs, *(f"{key}={msgspec.json.encode(value).decode()}" for key, value in over.items()))
    recipe = options.read_recipe(order.recipe, list(pairs))
    return Job(arm, seed, pairs, recipe, deciding_keys(arm, recipe, base))


def do_work(work: Work, say: Say) -> None:
    """Does all that is left; each result is written as soon as it is there."""
    order = work.order
    order.folder.mkdir(parents=True, exist_ok=True)
    with held(order.folder):
        digest = digest_of(recipe_keys(work.base))[:12]
        evaluator = Evaluator(order.recipe, order.pairs, order.folder, order.limit_s, quick=order.quick, digest=digest, say=say)
        base = work.base_stands or _evaluate_base(work, evaluator)
        if not work.jobs:
            return
        pools = make_pools(work.base, [job.arm.pool for job in work.jobs if job.arm.pool is not None], order, say)
        for number, job in enumerate(work.jobs, start=1):
            say(f"{job.name} ({number} of {len(work.jobs)}): {job.arm.told}")
            result = _run_job(work, job, base, evaluator, say)
            drawn = pools.get(job.arm.pool, "") if job.arm.pool is not None else ""
            file = write_result(order.results, msgspec.structs.replace(result, pool_digest=drawn))
            say(f"{job.name}: {_told(result)}; written to {file}")


def _told(result: ArmResult) -> str:
    """A result in words."""
    gaps = [
        f"{suite} {100 * gap:+.1f} points against base [{100 * low:+.1f}, {100 * high:+.1f}]"
        for suite, (gap, low, high) in result.against_base.items()
    ]
    return f"{result.trained_episodes} of {result.planned_episodes} planned episodes trained, {', '.join(gaps)}"


def _evaluate_base(work: Work, evaluator: Evaluator) -> ArmResult:
    job = work.base_job
    folder = find_folder(job.recipe.model.path)
    found = evaluator.evaluate(BASE, [folder], work.base)
    result = msgspec.structs.replace(
        _head(work, job, work.base), evaluations=found, seen=mark_seen(found, evaluator, evaluator.census(work.base))
    )
    write_result(work.order.results, result)
    return result


def _run_job(work: Work, job: Job, base: ArmResult, evaluator: Evaluator, say: Say) -> ArmResult:
    run_dir = run_folder(work.order, job)
    _run(work.order, job, run_dir, say)
    run_id = read_notes(run_dir).run_id
    policies = kept_policies(run_dir, job.recipe)
    with run_store("", str(run_dir)) as opened:
        figures = collect(opened.store, run_id)
        if figures.steps != work.budget.steps:
            raise AblationError(
                f"the run in {run_dir} ended after {figures.steps} of {work.budget.steps} optimizer steps",
                "Move its folder away to run the arm again",
            )
        openings = read_openings(opened.store, run_id)
        shown = {0: find_folder(job.recipe.model.path), **policies}
        due = {step: generations_of(step, figures.generations[-1].generation) for step in shown}
        turns = job.recipe.rollout.max_turns
        designs = {step: read_designs(opened.store, run_id, generations, turns) for step, generations in due.items()}
    frontier = measure_frontier(evaluator, job.name, shown, due, designs)
    found = evaluator.evaluate(job.name, list(policies.values()), work.base)
    curve = [one for one in found if one.salt == CHOICE]
    last = next(reversed(policies.values())).name
    final = [one for one in found if one.model == last]
    return msgspec.structs.replace(
        _head(work, job, work.base),
        run_id=run_id,
        steps=figures.steps,
        planned_episodes=plan_budget(job.recipe).episodes,
        trained_episodes=figures.trained_episodes,
        trained_designs=figures.trained_designs,
        trained_tokens=figures.trained_tokens,
        sampled_tokens=figures.sampled_tokens,
        minutes=figures.minutes,
        generations=figures.generations,
        frontier=frontier,
        evaluations=final,
        against_base=against(base, final),
        seen=mark_seen(final, evaluator, openings),
        curve=[
            CurvePoint(step=step, win_rate=one.win_rate)
            for step, one in zip(policies, curve, strict=True)
        ],
    )  # fmt: skip


def _head(work: Work, job: Job, base: Recipe) -> ArmResult:
    return ArmResult(
        arm=job.arm.name,
        seed=job.seed,
        recipe_digest=digest_of(job.deciding),
        recipe=dict(job.deciding),
        base_recipe=base.name,
        commit=commit(),
        code_digest=code_digest(),
    )


def _run(order: Order, job: Job, run_dir: Path, say: Say) -> None:
    """The arm's run to its end: begun, gone on with, or there already."""
    log = order.folder / "logs" / f"{job.name}.log"
    if not (run_dir / NOTES).exists():
        sets = [part for pair in job.pairs for part in ("--set", pair)]
        arguments = ["run", order.recipe, *sets, "--dir", str(run_dir), "--id", f"ablate-{job.name}"]
        run_children([Child(arguments, log, job.name)], order.limit_s, say)
        return
    if not read_notes(run_dir).finished:
        run_children([Child(["run", "--resume", str(run_dir)], log, job.name)], order.limit_s, say)


def _require_own(order: Order, job: Job) -> None:
    """Raises SettingsError where the job's run was begun with another recipe, and for a folder that holds no run."""
    run_dir = run_folder(order, job)
    if not (run_dir / NOTES).exists():
        if run_dir.exists() and any(run_dir.iterdir()):
            raise SettingsError(
                f"{run_dir} holds something that is no run (there is no {NOTES}): an earlier start was cut off",
                "Remove that folder, then call spade ablate again",
            )
        return
    notes = read_notes(run_dir)
    differing = changes(deciding_of(parse_recipe(notes.recipe_json, notes.run_id), job), dict(job.deciding))
    if differing:
        raise SettingsError(
            f"the run in {run_dir} was begun with another recipe ({'; '.join(differing)})",
            "Move that folder away, or name another --dir",
        )


def run_folder(order: Order, job: Job) -> Path:
    """Where a job's run stands."""
    return order.folder / "runs" / job.name


def deciding_of(begun: Recipe, job: Job) -> dict[str, Any]:
    """The deciding keys of a run that was begun; digests of its files are looked at by `spade run --resume` itself."""
    digests = {key: value for key, value in job.deciding.items() if key not in recipe_keys(job.recipe)}
    return {**recipe_keys(begun), **digests}


def kept_policies(run_dir: Path, recipe: Recipe) -> dict[int, Path]:
    """Step -> folder of the policies that the learning curve shows: those kept for good, and the last. Raises AblationError."""
    versions = PolicyStore(str(run_dir / "policies")).versions()
    every = recipe.train.keep_every * recipe.schedule.interval
    if max(versions, default=0) == 0:
        raise AblationError(f"{run_dir / 'policies'} holds no trained policy", "Remove the run's folder to run the arm again")
    last = max(versions)
    kept = range(every, last - recipe.schedule.delay, every) if every else ()  # not the one before the drain batches
    shown = [version for version in sorted(versions) if version == last or version in kept]
    return {version: versions[version][0] for version in shown}


def commit() -> str:
    """The commit of this code, with "-dirty" where tracked files differ from it; "" outside a repository."""
    try:
        head = _git("rev-parse", "HEAD")
        return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    answer = subprocess.run(
        ["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, check=True, timeout=20
    )  # fmt: skip
    return answer.stdout.strip()
