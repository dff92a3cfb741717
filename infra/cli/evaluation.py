"""One policy on a held-out suite, written into the log, and the demo's comparison of a run's first policy with its last.

In: a run, its broker. Out: an EvalFinished a policy, or both as facts for the report. Called by `spade eval` and `spade demo`.
"""

from __future__ import annotations

import time
from pathlib import Path

from infra.cli.interrupts import cleanup
from infra.cli.launch import Say, Services, context_of
from infra.cli.stages import child_environment
from infra.report.facts import EvaluationFacts
from infra.report.interval import paired_difference
from infra.runs import Run
from infra.suites import SuiteItem, load_suite
from infra.supervisor import ProcessSpec, Supervisor
from schemas.common import unpack_floats
from schemas.errors import StageTimeoutError
from schemas.process import BrokerSettings, ProcessContext
from schemas.topics import Topic
from schemas.train import EvalFinished, PolicyPublished

EVALUATION_LIMIT_S = 600.0


def compare(before: EvalFinished, after: EvalFinished, items: list[SuiteItem]) -> str:
    """The last policy against the first, instance by instance, in wins, form and return."""
    clusters = [items[number % len(items)].env_id for number in range(before.items)]
    who, lines = f"policy {after.policy_version} against {before.policy_version}", []
    for what, ours, theirs in (("won", before.won, after.won), ("well formed", before.formed, after.formed)):
        found = paired_difference(ours, theirs, clusters)
        lines.append(
            f"{who}, {what}: {100 * found.mean:+.1f} points "
            f"(95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f}, over {found.clusters} environments)"
        )
    if before.returns and after.returns:  # not in records of earlier versions
        found = paired_difference(unpack_floats(before.returns), unpack_floats(after.returns), clusters)
        lines.append(f"{who}, return: {found.mean:+.3f} (95 % interval {found.low:+.3f} to {found.high:+.3f})")
    return "\n".join(lines)


def evaluate_policy(run: Run, policy: PolicyPublished, context: ProcessContext, suite: str, limit: int = 0) -> EvalFinished:
    """Plays the suite with one policy and writes the result. Raises PolicyError, SandboxError, BrokerError."""
    from infra.kafka import make_producer
    from workers.evaluate import evaluate as play_suite

    record = play_suite(run.recipe, policy, policy_place=run.policy_place, run_id=run.run_id, suite=suite, limit=limit)
    with make_producer(context.broker) as producer:
        producer.send_all([(Topic.EVAL_FINISHED, record)])
    return record


def remember(context: ProcessContext, run_id: str) -> str:
    """Sees to it that the log's evaluations of a run reach its store; in words, how. The memory workers of a run end with it, so
    what is written later is brought there by one more, in this process. Raises BrokerError, StoreError."""
    from infra.kafka import ControlReader
    from workers import memory

    with ControlReader(context.broker, [Topic.RUN_FINISHED], run_id) as reader:
        ended = bool(reader.catch_up())
    if not ended:
        return "written to the log; the run's memory workers bring it to the store, when it goes on"
    if not context.store_dsn:
        return "written to the log; no store is named for it: with one, `spade work memory` brings it there"
    memory.run(context)
    return "written to the log and to the store"


def read_policies(broker: BrokerSettings, run_id: str) -> dict[int, PolicyPublished]:
    """Version -> its last publication."""
    from infra.kafka import ControlReader

    with ControlReader(broker, [Topic.POLICY_PUBLISHED], run_id) as reader:
        return {record.version: record for _, _, _, record in reader.catch_up() if isinstance(record, PolicyPublished)}


def read_evaluations(broker: BrokerSettings, run_id: str) -> dict[int, EvalFinished]:
    """Version -> its last evaluation."""
    from infra.kafka import ControlReader

    with ControlReader(broker, [Topic.EVAL_FINISHED], run_id) as reader:
        return {record.policy_version: record for _, _, _, record in reader.catch_up() if isinstance(record, EvalFinished)}


def compare_policies(run: Run, where: Services, run_dir: Path, say: Say) -> EvaluationFacts:
    """Version 0 and the last version on the recipe's suite, each in a process of its own, at the same time."""
    versions = sorted({0, max(read_policies(where.broker, run.run_id))})
    say(f"evaluating policies {' and '.join(map(str, versions))} on the same held-out instances ...")
    environment = child_environment(context_of(where, run_dir, run.run_id))
    supervisor = Supervisor(run_dir / "logs", environment, restarts=1, notify=say, may_end=True)
    end = time.monotonic() + EVALUATION_LIMIT_S
    try:
        supervisor.start([ProcessSpec(f"eval-{number}", ("eval", "--log-only", "--version", str(number))) for number in versions])
        while supervisor.running():
            supervisor.poll()
            if time.monotonic() >= end:
                raise StageTimeoutError(
                    f"the evaluation did not end within {EVALUATION_LIMIT_S:.0f} s", f"Look at the logs in {supervisor.log_dir}"
                )
            time.sleep(0.1)
    finally:
        with cleanup():
            supervisor.stop()
    found = read_evaluations(where.broker, run.run_id)
    return pair(found[versions[0]], found[versions[-1]], load_suite(run.recipe.evaluation.suite))


def pair(before: EvalFinished, after: EvalFinished, items: list[SuiteItem]) -> EvaluationFacts:
    """The two results as facts. The suite's items are all played on their first seed, then on their second, and so on."""
    clusters = [items[number % len(items)].env_id for number in range(before.items)]
    interval = paired_difference(before.won, after.won, clusters)
    families = {
        name: (before.by_family[name], after.by_family[name]) for name in sorted(before.by_family) if name in after.by_family
    }
    return EvaluationFacts(
        suite=before.suite,
        items=before.items,
        version_before=before.policy_version,
        version_after=after.policy_version,
        before=before.win_rate,
        after=after.win_rate,
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        clusters=interval.clusters,
        families=families,
    )
