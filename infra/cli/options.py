"""Options that many commands share, and the context that they amount to.

An address comes from the option, else from the environment, else from the state file of `spade up`. Secrets never stand on the
command line: a broker that needs a password is named by a TOML file of BrokerSettings, which names the secret's file.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.text import Text

from infra.metricports import FIRST_FREE
from infra.plaintext import escape, escape_line
from schemas.errors import BrokerError, SettingsError, StoreError

if TYPE_CHECKING:
    from schemas.process import BrokerSettings, ProcessContext
    from schemas.settings import Recipe

Broker = Annotated[
    str,
    typer.Option(
        "--broker",
        envvar="SPADE_BROKER",
        help="Kafka as HOST:PORT, or a TOML file with address, security_protocol, username, password_file, ca_file, claims. "
        "Default: the one of `spade up`.",
        show_default=False,
    ),
]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="SPADE_STORE",
        help="ClickHouse as clickhouse://USER@HOST:PORT/DB?password_file=FILE. Default: the one of `spade up`.",
        show_default=False,
    ),
]
RunFolder = Annotated[
    str,
    typer.Option(
        "--dir",
        metavar="RUN",
        help="A run's folder or id: its own store is asked, and started for that where it has ended.",
        show_default=False,
    ),
]
RunId = Annotated[
    str, typer.Option("--run", envvar="SPADE_RUN", help="Run id. Default: the newest unfinished run.", show_default=False)
]
StateDir = Annotated[
    str,
    typer.Option("--state-dir", envvar="SPADE_STATE_DIR", help="Where this process may write. Default: below the home folder."),
]
LogJson = Annotated[bool, typer.Option("--log-json", envvar="SPADE_LOG_JSON", help="Log lines as JSON.")]
MetricsPort = Annotated[
    int,
    typer.Option(
        "--metrics-port",
        envvar="SPADE_METRICS_PORT",
        min=FIRST_FREE,
        max=65535,
        help="Serve Prometheus metrics on this loopback port; 0: don't. Default: the first free one of the kind's ports "
        "(docs/DASHBOARDS.md).",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key, e.g. schedule.steps=20.")
]

ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):\d{1,5}")
UNSEEN_WIDTH = 140  # columns where nobody's terminal says how many it has
LONGEST_TEXT = 20_000

UP = "up.json"  # in the state home


class PlainConsole(Console):
    """Prints text as text: without markup, and nothing in it acts on the terminal. Tables and panels are printed as ever."""

    def print(self, *objects: Any, **options: Any) -> None:
        """See Console.print."""
        super().print(*(Text(escape(one, LONGEST_TEXT)) if isinstance(one, str) else one for one in objects), **options)


def cell(text: str) -> str:
    """Text for a cell of a table, whose cells are read for markup."""
    return escape_markup(escape_line(text))


out = PlainConsole(
    highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNSEEN_WIDTH
)


def state_home() -> Path:
    """Where `spade up` and workers started by hand keep state: $SPADE_STATE, else below $XDG_STATE_HOME or ~/.local/state."""
    named = os.environ.get("SPADE_STATE", "")
    if named:
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if base else Path.home() / ".local" / "state") / "spade"


def standing() -> dict[str, str]:
    """What `spade up` wrote: addresses, the `place` of their data, whether `borrowed` from a living run; {} where nothing is, or
    where what was borrowed has ended with its run, which may go on under other addresses."""
    noted = up_notes()
    if noted.get("borrowed"):
        from infra.local.broker import LocalBroker

        living = LocalBroker.attach(Path(noted["place"]) / "broker")
        if living is None or living.address != noted["broker"]:
            return {}
    return noted


def up_notes() -> dict[str, str]:
    """The same as it was written, whether or not anything of it lives."""
    file = state_home() / UP
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as problem:
        raise SettingsError(f"the state file {file} is damaged ({problem})", "Remove it, then run `spade up`") from problem


def broker_settings(given: str) -> BrokerSettings | None:
    """The broker of an option value: an address, or a TOML file. None where nothing is given and nothing is up."""
    named = given or standing().get("broker", "")
    if not named:
        return None
    from pydantic import ValidationError

    from schemas.process import BrokerSettings

    if not named.endswith(".toml"):
        claims = "" if given else str(state_home().absolute() / "claims")  # of `spade up`, on this machine
        return BrokerSettings(address=_checked(named, "--broker"), claims=claims)
    try:
        values: dict[str, Any] = tomllib.loads(Path(named).read_text(encoding="utf-8"))
        settings = BrokerSettings.model_validate(values)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"broker file {named} can't be read: {problem}", "Correct the file") from problem
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise SettingsError(f"broker file {named}: {key}: {first['msg']}", "Correct or remove the key") from error
    _checked(settings.address, f"broker file {named}: address")
    return settings


def _checked(address: str, source: str) -> str:
    for one in address.split(","):
        if not ADDRESS.fullmatch(one):
            raise SettingsError(f"{source}: {one!r} is not HOST:PORT", "Write for example 127.0.0.1:9092, several with commas")
    return address


def require_broker(given: str) -> BrokerSettings:
    """The broker, or BrokerError that says how to get one."""
    settings = broker_settings(given)
    if settings is None:
        raise BrokerError(
            "no broker is named and none is up",
            "Start a run's own with `spade up --run RUN`, an empty one with `spade up`, or name one with --broker HOST:PORT",
        )
    return settings


def require_store(given: str) -> str:
    """The store's DSN, or StoreError that says how to get one."""
    named = given or standing().get("store", "")
    if not named:
        raise StoreError(
            "no store is named and none is up",
            "Start a run's own with `spade up --run RUN`, an empty one with `spade up`, or name one with --store DSN",
        )
    refuse_shown_password(named)
    return named


def refuse_shown_password(dsn: str, option: str = "--store") -> None:
    """Raises SettingsError for a password on our own command line, where every user of the machine can read it."""
    if urlsplit(dsn).password and any(dsn in argument for argument in sys.argv):
        raise SettingsError(
            f"{option} holds a password, and a command line is shown in the list of processes",
            "Write the password into a file and name that: clickhouse://USER@HOST:PORT/DB?password_file=FILE",
        )


def stage_context(
    broker: str, store: str, run: str, state_dir: str, *, log_json: bool = False, metrics_port: int = 0, needs_store: bool = True
) -> ProcessContext:
    """What one process is told at its start."""
    from schemas.process import ProcessContext

    folder = Path(state_dir) if state_dir else state_home() / "work"
    folder.mkdir(parents=True, exist_ok=True)
    return ProcessContext(
        broker=require_broker(broker),
        store_dsn=require_store(store) if needs_store else store,
        run_id=run,
        state_dir=str(folder.resolve()),
        log_json=log_json,
        metrics_port=metrics_port,
    )


def require_place(file: Path | None, option: str) -> None:
    """Raises SettingsError where a file can't be written, before the work whose result it is to hold. None is any place."""
    if file is None:
        return
    real = Path(os.path.realpath(file))
    if real.is_dir():
        raise SettingsError(f"{option} {file} is a folder", "Name a file")
    if real.exists() and not real.is_file():
        return  # a device or a pipe: opening it may be what somebody waits for
    try:
        tempfile.NamedTemporaryFile(dir=real.parent, prefix=f".{real.name}.").close()
    except OSError as problem:
        raise SettingsError(
            f"{option} {file} can't be written ({problem.strerror or problem})", "Name a file in a folder that is there and yours"
        ) from problem


def read_overrides(pairs: list[str] | None) -> dict[str, Any]:
    """KEY=VALUE pairs as dotted overrides; a value is read as TOML, else as text."""
    overrides: dict[str, Any] = {}
    for pair in pairs or []:
        key, found, value = pair.partition("=")
        if not found or not key:
            raise SettingsError(f"--set {pair!r} is not KEY=VALUE", "Write for example --set schedule.steps=20")
        try:
            overrides[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            overrides[key.strip()] = value
    return overrides


def shipped_recipes() -> dict[str, Path]:
    """Name -> file of the recipes that come with the project."""
    folder = Path(__file__).resolve().parent.parent / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def read_recipe(name: str, pairs: list[str] | None = None) -> Recipe:
    """The recipe of a file or a shipped name, with overrides; folders named relative to the file become absolute."""
    from schemas.recipes import build_recipe, load_recipe

    shipped = shipped_recipes()
    path = shipped[name] if name in shipped and not Path(name).exists() else Path(name)
    if not path.exists():
        raise SettingsError(f"recipe {name} does not exist", f"Name a TOML file or one of: {', '.join(shipped)}")
    recipe = load_recipe(path, read_overrides(pairs))
    moved = {
        f"{section}.path": str((path.parent / value).resolve())
        for section, value in (("model", recipe.model.path), ("corpus", recipe.corpus.path))
        if not Path(value).is_absolute() and (path.parent / value).is_dir()
    }
    return build_recipe(recipe.model_dump(), moved, str(path)) if moved else recipe
