"""The two runs of `spade chaos`: one undisturbed, one under a storm of blows, with one id.

In: what a person ordered. Out: findings. Called by infra.cli.chaos, which gives the check. Blocks for both runs; raises what they
end in. Everything stays in the ordered folder: calm/ and storm/ are ordinary run folders, beside each what `spade run` printed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.chaos import guarantees
from infra.chaos.evidence import Evidence, read_evidence
from infra.chaos.guarantees import Finding
from infra.chaos.plan import Blow, make_plan
from infra.chaos.storm import Storm, StormError, Struck, count_blows
from infra.chaos.victims import ALL_KINDS, BROKER, STALL_S, STORE
from infra.cli import options
from infra.cli.interrupts import cleanup
from infra.cli.launch import Services
from infra.cli.services import CLAIMS
from infra.local.broker import LocalBroker
from infra.local.processes import OwnedProcess, last_lines
from infra.local.store import LocalStore
from infra.runs import new_run_id
from schemas.errors import StageTimeoutError
from schemas.process import BrokerSettings

RESTARTS = 1000  # a kill from outside is no failure of the process that it hits
Check = Callable[[Evidence, Services], list[Finding]]


@dataclass(frozen=True)
class Order:
    """What `spade chaos` was asked for."""

    recipe: str
    overrides: tuple[str, ...]
    folder: Path
    kills: int
    seed: int
    limit_s: float  # of each of the two runs
    broker: str = ""
    store: str = ""


def disturb(order: Order, check: Check) -> list[Finding]:
    """Both runs, and what they show."""
    settings = [*order.overrides, f"processes.restarts={RESTARTS}"]
    recipe = options.read_recipe(order.recipe, settings)
    run_id = new_run_id(f"chaos-{recipe.name}")
    command = ["run", order.recipe, *[part for one in settings for part in ("--set", one)], "--id", run_id]
    calm_dir, run_dir, say = order.folder / "calm", order.folder / "storm", options.out.print
    say(f"run {run_id}, undisturbed, in {calm_dir} ...")
    calm_s = run_calm(_spade(*command, "--dir", str(calm_dir)), order.folder, order.limit_s)
    with reopened(calm_dir) as where:
        calm = read_evidence(where.broker, run_id)
    records = sum(map(len, calm.places.values()))
    say(f"undisturbed: {calm_s:.0f} s, {records} records; now with {order.kills} blows (seed {order.seed}) in {run_dir} ...")
    named = [*(["--broker", order.broker] if order.broker else []), *(["--store", order.store] if order.store else [])]
    storm = Storm(
        run_id=run_id,
        recipe=recipe,
        run_dir=run_dir,
        start=_spade(*command, "--dir", str(run_dir), *named),
        resume=_spade("run", "--resume", str(run_dir), *named),
        environment=apart(order.folder),
        plan=plan_of(order),
        calm_records=records,
        say=say,
        deadline_s=order.limit_s,
        seed=order.seed,
        broker=options.broker_settings(order.broker) if order.broker else None,
    )
    storm_s = storm.run()
    with reopened(run_dir, order.broker, order.store) as where:
        evidence = read_evidence(where.broker, run_id)
        found = check(evidence, where)
    return [told_blows(storm.struck, order.kills, storm_s, calm_s), *found, *guarantees.compare(evidence, calm)]


def plan_of(order: Order) -> list[Blow]:
    """The order's plan: a broker or store that was named is not the run's own, and is spared."""
    spared = {kind for kind, named in ((BROKER, order.broker), (STORE, order.store)) if named}
    return make_plan([kind for kind in ALL_KINDS if kind not in spared], tuple(STALL_S), order.kills, order.seed)


def told_blows(struck: list[Struck], ordered: int, storm_s: float, calm_s: float) -> Finding:
    """Blows by kind, and what the storm cost in time."""
    kinds = ", ".join(f"{kind} {how} {times}" for (kind, how), times in sorted(count_blows(struck).items()))
    told = (
        f"{len(struck)} of {ordered} blows ({kinds}); {storm_s:.0f} s, undisturbed {calm_s:.0f} s: {storm_s / calm_s:.1f} times"
    )
    if len(struck) < ordered:
        told += "; the run was too short for more: order fewer, or more schedule.steps"
    return Finding("every blow fell on a busy process", len(struck) == ordered, told)


def run_calm(command: list[str], folder: Path, limit_s: float) -> float:
    """A run as a child, to its end; its wall-clock seconds. Raises StormError where it fails, StageTimeoutError."""
    began, log = time.monotonic(), folder / "calm.log"
    process = OwnedProcess.start(command, log, env=apart(folder))
    try:
        if not process.wait(limit_s):
            raise StageTimeoutError(
                f"the undisturbed run has not ended within {limit_s:.0f} s", "Allow more --minutes, or order fewer schedule.steps"
            )
    finally:
        with cleanup():
            process.stop(60.0)
    if process.exit_code != 0:
        raise StormError(f"the undisturbed run ended with {process.exit_code}: {last_lines(log, count=1)}", f"Look at {log}")
    return time.monotonic() - began


@contextlib.contextmanager
def reopened(run_dir: Path, broker: str = "", store: str = "") -> Iterator[Services]:
    """Broker and store of a run that has ended: its own started again on its folder, or those that are named."""
    with contextlib.ExitStack() as stack:
        named = options.broker_settings(broker) if broker else None
        if named is None:
            local = LocalBroker.start(run_dir / BROKER)
            stack.callback(local.stop)
            named = BrokerSettings(address=local.address, claims=str((run_dir / CLAIMS).resolve()))
        if not store:
            kept = LocalStore.start(run_dir / STORE)
            stack.callback(kept.stop)
            store = kept.dsn
        yield Services(broker=named, store_dsn=store)


def apart(folder: Path) -> dict[str, str]:
    """The environment of a run that is to have its own broker and store, whatever `spade up` and the shell name."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("SPADE_BROKER", "SPADE_STORE", "SPADE_RUN")}
    return {**inherited, "SPADE_STATE": str(folder / "state")}


def _spade(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "infra.cli", *arguments]
