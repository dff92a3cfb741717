"""Broker and store of a run: those that are named, those of `spade up`, or local ones of its own in its folder.

In: options, the run's folder. Out: where both are reached, and the own ones, which the supervisor guards. Called by `spade run`
and `spade demo`, in the main thread. Own ones are ended on exit; after a kill -9 the kernel ends them with their owner.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from infra.cli.interrupts import cleanup
from infra.cli.options import broker_settings, refuse_shown_password, require_broker, require_store, standing
from infra.cli.rundir import Notes
from infra.clickhouse import parse_dsn
from infra.local.guard import Guard, Service
from infra.restarts import Restarts
from schemas.errors import BrokerError, SettingsError, StoreError
from schemas.process import BrokerSettings

BROKER, STORE, CLAIMS = "broker", "store", "claims"  # folders of a run that has its own
LEAVING_S = 15.0  # for the services of a supervisor that was killed
Say = Callable[[str], None]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Services:
    """Where broker and store are reached, which of them are this process's own, and how the others were named."""

    broker: BrokerSettings
    store_dsn: str
    own: tuple[tuple[str, Service], ...] = ()
    named_broker: str = ""
    named_store: str = ""


def guard(where: Services, limit: int, say: Say) -> list[Guard]:
    """Guards of the own services, each of which may die `limit` times a cause."""
    return [Guard(name, service, Restarts(limit), notify=say) for name, service in where.own]


def outlast(where: Services, limit: int, say: Say, action: Callable[[], Made]) -> Made:
    """What `action` makes, which is called again after an own broker or store died under it and was started again.

    For what happens before a supervisor guards them; the action must bear being done twice. Raises what the action raises, and
    SupervisorError where a service dies too often.
    """
    guards = guard(where, limit, say)
    while True:
        try:
            return action()
        except (BrokerError, StoreError):
            if all(one.service.alive() for one in guards):
                raise
        while not all(one.service.alive() for one in guards):
            for one in guards:
                one.poll()
            time.sleep(0.1)


class _Stoppable(Protocol):
    def stop(self) -> None: ...


@contextlib.contextmanager
def services(broker: str, store: str, run_dir: Path, say: Say, *, own: bool = False) -> Iterator[Services]:
    """Those that are named, else those of `spade up`, else (or where `own`) local ones in the run's folder, ended on exit."""
    named = None if own else broker_settings(broker)
    dsn = "" if own else store or standing().get("store", "")
    refuse_shown_password(dsn)
    with _opened(named, dsn, ("" if own else broker, "" if own else store), run_dir, say) as found:
        yield found


@contextlib.contextmanager
def same_services(notes: Notes, broker: str, store: str, run_dir: Path, say: Say) -> Iterator[Services]:
    """Those that the run began with: its own ones on their folders again, the others where they are named now or were then."""
    for kind, given in ((BROKER, broker), (STORE, store)):
        if given and kind in notes.own:
            raise SettingsError(
                f"the run has a {kind} of its own in {run_dir / kind}, and --{kind} names another",
                f"Leave away --{kind} and unset SPADE_{kind.upper()}",
            )
    wanted = (broker or notes.broker, store or notes.store)
    named = None if BROKER in notes.own else require_broker(wanted[0])
    dsn = "" if STORE in notes.own else require_store(wanted[1])
    with _opened(named, dsn, wanted, run_dir, say) as found:
        yield found


@contextlib.contextmanager
def _opened(named: BrokerSettings | None, dsn: str, given: tuple[str, str], run_dir: Path, say: Say) -> Iterator[Services]:
    """Checks the named broker; starts what is not named."""
    own: list[tuple[str, Service]] = []
    if dsn:
        parse_dsn(dsn)  # a bad address is told before a broker is started for it
    with contextlib.ExitStack() as stack:
        if named is None:
            from infra.local.broker import LocalBroker

            say("starting the broker (Apache Kafka, one KRaft node) ...")
            _await_gone(lambda: LocalBroker.attach(run_dir / BROKER))
            kafka = LocalBroker.start(run_dir / BROKER)
            stack.callback(_end, kafka)
            own.append((BROKER, kafka))
            named = BrokerSettings(address=kafka.address, claims=str((run_dir / CLAIMS).resolve()))
        else:
            from infra.kafka import check_broker

            check_broker(named)
        if not dsn:
            from infra.local.store import LocalStore

            say("starting the store (ClickHouse's embedded engine) ...")
            _await_gone(lambda: LocalStore.attach(run_dir / STORE))
            clickhouse = LocalStore.start(run_dir / STORE)
            stack.callback(_end, clickhouse)
            own.append((STORE, clickhouse))
            dsn = clickhouse.dsn
        yield Services(broker=named, store_dsn=dsn, own=tuple(own), named_broker=given[0], named_store=given[1])


def _end(service: _Stoppable) -> None:
    with cleanup():
        service.stop()


def _await_gone(attach: Callable[[], object | None]) -> None:
    """Waits a little for the service of a supervisor that was killed: the kernel ends it, but not in the same moment."""
    end = time.monotonic() + LEAVING_S
    while attach() is not None and time.monotonic() < end:
        time.sleep(0.1)
