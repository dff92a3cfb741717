"""`spade up` and `spade down`: the local broker and store, left running between commands.

`up.json` in the state home names them; both are found again by process id and start time, so that a second `up` starts only what
is missing and `down` ends exactly what `up` started.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli.interrupts import cleanup, stoppable, undisturbed
from infra.cli.options import UP, out, standing, state_home, up_notes
from schemas.errors import SettingsError

if TYPE_CHECKING:
    from infra.local.broker import LocalBroker
    from infra.local.store import LocalStore

Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Default: a free one.", show_default=False)]


def up(
    broker_port: Port = None,
    store_port: Port = None,
    run: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Start those of a run on its own folder (or id), so that every command can ask about it.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Start the local broker (Apache Kafka) and store (ClickHouse) and leave them running until `spade down`."""
    from infra.local.broker import LocalBroker
    from infra.local.store import LocalStore

    home = state_home()
    home.mkdir(parents=True, exist_ok=True)
    place, borrowed = _place_of(run) if run else (home, False)
    _refuse_another(home, place)
    started: list[LocalBroker | LocalStore] = []
    with stoppable(), _all_or_none(started):
        broker = LocalBroker.attach(place / "broker")
        if broker is not None:
            tell_up("broker", broker.address, broker_port, broker.port)
        else:
            out.print("starting the broker (Apache Kafka) ...")
            with undisturbed():  # a detached process must not be lost between its start and the state file
                broker = LocalBroker.start(place / "broker", port=broker_port, detached=True)
                started.append(broker)
        store = LocalStore.attach(place / "store")
        if store is not None:
            tell_up("store", f"127.0.0.1:{store.port}", store_port, store.port)
        else:
            out.print("starting the store (ClickHouse) ...")
            with undisturbed():
                store = LocalStore.start(place / "store", port=store_port, detached=True)
                started.append(store)
        noted = {"broker": broker.address, "store": store.dsn, "place": str(place.resolve()), "borrowed": "1" if borrowed else ""}
        write_private(home / UP, json.dumps(noted))
    out.print(f"broker  {broker.address}  (process {broker.pid}, data in {broker.data_dir})")
    out.print(f"store   127.0.0.1:{store.port}  (process {store.pid}, data in {store.data_dir})")
    ends = "forgets them: they end with the run" if borrowed else "ends them"
    out.print(f"Every command now uses them; `spade down` {ends}.")


@contextlib.contextmanager
def _all_or_none(started: Sequence[LocalBroker | LocalStore]) -> Iterator[None]:
    """Ends what the body has started where it does not come to its end: `spade down` would not find it."""
    try:
        yield
    except BaseException:
        with cleanup():
            for service in started:
                service.stop()
        raise


def down(wipe: Annotated[bool, typer.Option("--wipe", help="Also remove their data.")] = False) -> None:
    """End the local broker and store that `spade up` started. Does nothing where none runs."""
    import shutil

    from infra.local.broker import LocalBroker
    from infra.local.store import LocalStore

    home = state_home()
    noted = up_notes()
    place = Path(noted.get("place", "") or home)
    if wipe and place != home.resolve() and place != home:
        raise SettingsError(
            f"the data that is up is a run's own, in {place}",
            "Leave --wipe away; remove the run's folder by hand where you mean it",
        )
    ended = []
    if not noted.get("borrowed"):
        for name, service in (("broker", LocalBroker.attach(place / "broker")), ("store", LocalStore.attach(place / "store"))):
            if service is not None:
                service.stop()
                ended.append(f"{name} (process {service.pid})" if service.pid else name)
    (home / UP).unlink(missing_ok=True)
    said = f"ended: {', '.join(ended)}" if ended else "nothing was up"
    if noted.get("borrowed"):
        said = f"forgotten: broker and store of the run in {place}, which end with it"
    if wipe:
        held = [name for name in ("broker", "store") if (home / name).exists()]
        for name in held:
            shutil.rmtree(home / name, ignore_errors=True)
        said += f"; removed the data of {' and '.join(held)} in {home}" if held else f"; there was no data in {home}"
    out.print(said)


def _place_of(run: str) -> tuple[Path, bool]:
    """The folder of a run with a broker and store of its own, and whether a living command uses them now."""
    from infra.cli.rundir import find_run_folder, is_held, read_notes

    folder = find_run_folder(run).resolve()
    lacking = {"broker", "store"} - set(read_notes(folder).own)
    if lacking:
        raise SettingsError(
            f"the run in {folder} has no {' and no '.join(sorted(lacking))} of its own",
            "Name those that it was started with by --broker and --store",
        )
    return folder, is_held(folder)


def _refuse_another(home: Path, place: Path) -> None:
    """Raises SettingsError where something else is up already."""
    from infra.local.broker import LocalBroker

    noted = standing()
    if not noted:
        return
    there = Path(noted.get("place", "") or home)
    if there.resolve() != place.resolve() and LocalBroker.attach(there / "broker") is not None:
        raise SettingsError(f"the broker and store of {there} are up", "End them first with `spade down`")


def tell_up(what: str, address: str, asked: int | None, port: int) -> None:
    """Says where a service stands already, and that a port asked for is not used."""
    unused = f"; port {asked} is not used, `spade down` first to move it" if asked not in (None, port) else ""
    out.print(f"the {what} is up already at {address}{unused}")


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner may read, whole or not at all."""
    part = path.with_suffix(".part")
    try:
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as problem:
        raise SettingsError(
            f"{path} can't be written ({problem.strerror})", "Name another state folder with $SPADE_STATE"
        ) from problem
