"""The store that a person means: that of a run's folder, a named one, that of `spade up`, or that of the newest run here.

A run of `spade run` or `spade demo` may have had a store of its own, which ended with it; it is started again on the run's folder
for as long as the command asks it, and ended after. Called by `spade memory`, `why`, `dashboard`. Raises SpadeErrors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.cli.interrupts import cleanup, stoppable
from infra.cli.options import require_store, standing
from infra.cli.rundir import HOME, NOTES, Notes, find_run_folder, held, read_notes
from infra.cli.services import STORE
from infra.clickhouse import ClickHouseStore, connect
from schemas.errors import SettingsError, StoreError


@dataclass(frozen=True)
class Opened:
    """A store that answers, and the run that its place speaks of ("": none)."""

    store: ClickHouseStore
    run_id: str = ""


@contextlib.contextmanager
def run_store(dsn: str, folder: str) -> Iterator[Opened]:
    """`dsn`: --store; `folder`: --dir, a run's folder or id, which counts first; both may be empty."""
    if not folder and (dsn or standing().get("store")):
        with contextlib.closing(connect(require_store(dsn))) as store:
            yield Opened(store)
        return
    place = find_run_folder(folder) if folder else _newest_own()
    notes = read_notes(place)
    with contextlib.ExitStack() as stack:
        named = stack.enter_context(_own_store(place)) if STORE in notes.own else require_store(notes.store)
        store = stack.enter_context(contextlib.closing(connect(named)))
        yield Opened(store, notes.run_id)


def newest_run(store: ClickHouseStore) -> str:
    """The run that began last. Raises SettingsError where the store holds none."""
    rows = store.query("SELECT run_id FROM runs FINAL WHERE event = 'started' ORDER BY created_at DESC, run_id LIMIT 1")
    if not rows:
        raise SettingsError(f"store {store.address.shown} holds no run", "Name another with --store")
    return str(rows[0]["run_id"])


@contextlib.contextmanager
def _own_store(place: Path) -> Iterator[str]:
    """The DSN of the folder's own store: the one that runs now, else one for this command."""
    from infra.local.store import LocalStore

    running = LocalStore.attach(place / STORE)
    if running is not None:
        yield running.dsn
        return
    with stoppable(), held(place):
        store = LocalStore.start(place / STORE)
        try:
            yield store.dsn
        finally:
            with cleanup():
                store.stop()


def _newest_own() -> Path:
    """The folder in `runs` here of the newest run with a store of its own."""
    found: list[tuple[float, Path, Notes]] = []
    for file in HOME.glob(f"*/{NOTES}"):
        with contextlib.suppress(SettingsError, OSError):
            found.append((file.stat().st_mtime, file.parent, read_notes(file.parent)))
    own = [(when, folder) for when, folder, notes in found if STORE in notes.own]
    if not own:
        raise StoreError(
            f"no store is named, none is up, and no run in the folder {HOME} here has one of its own",
            "Name one with --store DSN, a run's folder with --dir, or start one with `spade up`",
        )
    return max(own)[1]
