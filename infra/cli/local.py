"""`spade up` and `spade down`: the local broker and store, left running between commands.

`up.json` in the state home names them; both are found again by process id and start time, so that a second `up` starts only what
is missing and `down` ends exactly what `up` started.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from infra.cli.interrupts import stoppable, undisturbed
from infra.cli.options import out, state_home
from schemas.errors import SettingsError

Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Default: a free one.", show_default=False)]


def up(broker_port: Port = None, store_port: Port = None) -> None:
    """Start the local broker (Apache Kafka) and store (ClickHouse) and leave them running until `spade down`."""
    from infra.local.broker import LocalBroker
    from infra.local.store import LocalStore

    home = state_home()
    home.mkdir(parents=True, exist_ok=True)
    with stoppable():
        broker = LocalBroker.attach(home / "broker")
        if broker is not None:
            tell_up("broker", broker.address, broker_port, broker.port)
        else:
            out.print("starting the broker (Apache Kafka) ...")
            with undisturbed():  # a detached process must not be lost between its start and the state file
                broker = LocalBroker.start(home / "broker", port=broker_port, detached=True)
        store = LocalStore.attach(home / "store")
        if store is not None:
            tell_up("store", f"127.0.0.1:{store.port}", store_port, store.port)
        else:
            out.print("starting the store (ClickHouse) ...")
            with undisturbed():
                store = LocalStore.start(home / "store", port=store_port, detached=True)
        write_private(home / "up.json", json.dumps({"broker": broker.address, "store": store.dsn}))
    out.print(f"broker  {broker.address}  (process {broker.pid}, data in {home / 'broker'})")
    out.print(f"store   127.0.0.1:{store.port}  (process {store.pid}, data in {home / 'store'})")
    out.print("Every command now uses them; `spade down` ends them.")


def down(wipe: Annotated[bool, typer.Option("--wipe", help="Also remove their data.")] = False) -> None:
    """End the local broker and store that `spade up` started. Does nothing where none runs."""
    import shutil

    from infra.local.broker import LocalBroker
    from infra.local.store import LocalStore

    home = state_home()
    ended = []
    for name, service in (("broker", LocalBroker.attach(home / "broker")), ("store", LocalStore.attach(home / "store"))):
        if service is not None:
            service.stop()
            ended.append(f"{name} (process {service.pid})" if service.pid else name)
    (home / "up.json").unlink(missing_ok=True)
    said = f"ended: {', '.join(ended)}" if ended else "nothing was up"
    if wipe:
        held = [name for name in ("broker", "store") if (home / name).exists()]
        for name in held:
            shutil.rmtree(home / name, ignore_errors=True)
        said += f"; removed the data of {' and '.join(held)} in {home}" if held else f"; there was no data in {home}"
    out.print(said)


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
