"""A run's folder: what a person's command needs to find the run again, and who uses the folder now.

In: a folder or a run's id. Out: notes (`run.json`, for this user only) and a lock. Nothing here decides about data: the run
itself is its first record in the log. Called by `spade run` and `spade demo`. Raises SettingsError.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from infra.cli.local import write_private
from schemas.errors import SettingsError

NOTES = "run.json"
HOME = Path("runs")
KNOWN = 5  # runs that a message names


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in `run.json`; fields only ever get added, with defaults."""

    run_id: str
    recipe_json: str  # as in the run's first record, which counts where there is one
    own: tuple[str, ...] = ()  # services that live in the folder: broker, store
    broker: str = ""  # as it was named: an address or a TOML file; "" where it is an own one or that of `spade up`
    store: str = ""  # as it was named, unless it held a password
    pid: int = 0  # of the last supervisor, told to people
    forked_from: str = ""
    forked_at: int = -1
    finished: bool = False  # and everything written until then was read


def write_notes(folder: Path, notes: Notes) -> None:
    """Writes the notes, whole or not at all; the folder is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_private(folder / NOTES, msgspec.json.format(msgspec.json.encode(notes)).decode() + "\n")


def read_notes(folder: Path) -> Notes:
    """The notes of a run's folder."""
    try:
        return msgspec.json.decode((folder / NOTES).read_bytes(), type=Notes)
    except FileNotFoundError:
        raise SettingsError(
            f"{folder} holds no run ({NOTES} is missing: the run never began, or this is another folder)",
            "Start it anew with `spade run RECIPE`",
        ) from None
    except (OSError, msgspec.MsgspecError) as problem:
        raise SettingsError(
            f"{folder / NOTES} can't be read ({problem})", "Put back the file that `spade run` wrote"
        ) from problem


def mark_finished(folder: Path) -> None:
    """Notes that the run has finished and that everything written until then was read."""
    write_notes(folder, msgspec.structs.replace(read_notes(folder), finished=True))


def find_run_folder(named: str) -> Path:
    """The folder that is named, or in `runs` here that of the run with this id, or the only one whose id begins so."""
    folder = Path(named)
    if folder.is_dir() or os.sep in named:
        if not folder.is_dir():
            raise SettingsError(f"the run's folder {named} does not exist", "Name a folder of `spade run`, or a run's id")
        return folder
    known = {}
    for file in sorted(HOME.glob(f"*/{NOTES}"), key=lambda file: -file.stat().st_mtime):
        with contextlib.suppress(SettingsError):
            known[read_notes(file.parent).run_id] = file.parent
    fitting = [run_id for run_id in known if run_id == named] or [run_id for run_id in known if run_id.startswith(named)]
    if len(fitting) != 1:
        names = ", ".join((fitting or list(known))[:KNOWN]) or "none"
        what = "there is no run" if not fitting else "several runs begin with"
        raise SettingsError(f"{what} {named} in the folder {HOME} (known: {names})", "Name the run's folder")
    return known[fitting[0]]


def is_held(folder: Path) -> bool:
    """Whether a living command uses the folder."""
    try:
        with held(folder):
            return False
    except SettingsError:
        return True


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks the folder for as long as this process lives; the kernel lets go of it with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        raise SettingsError(
            f"the run's folder {folder} can't be made or opened ({problem.strerror})", "Name another with --dir"
        ) from problem
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = ""
            with contextlib.suppress(SettingsError):
                owner = f" (process {read_notes(folder).pid})"
            raise SettingsError(
                f"the run's folder {folder} is in use by a living `spade` command{owner}",
                "Wait for its end, or stop it with Ctrl-C",
            ) from None
        yield
    finally:
        os.close(descriptor)
