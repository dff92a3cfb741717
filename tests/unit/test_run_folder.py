"""A run's folder: notes, lock, finding it again; what `spade run` says to options that don't go together."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from infra.cli.app import run_app
from infra.cli.launch import Services, noted_again
from infra.cli.rundir import NOTES, Notes, find_run_folder, held, mark_finished, read_notes, write_notes
from infra.cli.runs import told_how_to_resume
from infra.cli.services import same_services
from schemas.errors import SettingsError, StageTimeoutError
from schemas.process import BrokerSettings
from schemas.settings import Recipe

NOTED = Notes(
    run_id="tiny-20260101-120000-ab12", recipe_json=Recipe().model_dump_json(), own=("broker",), store="clickhouse://s@h:1/d"
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPADE_STATE", str(tmp_path / "state"))
    for name in ("SPADE_BROKER", "SPADE_STORE", "SPADE_RUN"):
        monkeypatch.delenv(name, raising=False)


def test_notes_come_back_and_are_their_users_only(tmp_path: Path) -> None:
    write_notes(tmp_path / "run", NOTED)
    assert read_notes(tmp_path / "run") == NOTED
    assert stat.S_IMODE((tmp_path / "run" / NOTES).stat().st_mode) == 0o600
    mark_finished(tmp_path / "run")
    assert read_notes(tmp_path / "run").finished


def test_folder_without_notes_and_damaged_notes_are_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"holds no run \(run\.json is missing"):
        read_notes(tmp_path)
    (tmp_path / NOTES).write_text("{")
    with pytest.raises(SettingsError, match="can't be read"):
        read_notes(tmp_path)


def test_run_is_found_by_folder_id_and_beginning_of_an_id(tmp_path: Path) -> None:
    for number in (1, 2):
        write_notes(Path("runs") / f"folder-{number}", Notes(run_id=f"tiny-{number}", recipe_json="{}"))
    assert find_run_folder("runs/folder-1") == Path("runs/folder-1")
    assert find_run_folder(str(tmp_path / "runs" / "folder-2")) == tmp_path / "runs" / "folder-2"
    assert find_run_folder("tiny-2") == Path("runs/folder-2")
    write_notes(Path("runs") / "folder-3", Notes(run_id="other", recipe_json="{}"))
    assert find_run_folder("oth") == Path("runs/folder-3")
    with pytest.raises(SettingsError, match=r"several runs begin with tiny in the folder runs \(known: tiny-\d, tiny-\d\)"):
        find_run_folder("tiny")
    with pytest.raises(SettingsError, match=r"there is no run nosuch in the folder runs \(known: .*other"):
        find_run_folder("nosuch")
    with pytest.raises(SettingsError, match="the run's folder runs/none does not exist"):
        find_run_folder("runs/none")


def test_folder_in_use_is_refused_until_its_holder_is_gone_however_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = (
        "import os, sys, time; from pathlib import Path; from infra.cli.rundir import Notes, held, write_notes\n"
        f"with held(Path({str(folder)!r})):\n"
        f"    write_notes(Path({str(folder)!r}), Notes(run_id='r', recipe_json='', pid=os.getpid()))\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    with pytest.raises(SettingsError, match=rf"is in use by a living `spade` command \(process {child.pid}\)"), held(folder):
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    with held(folder):
        assert read_notes(folder).run_id == "r"


def test_notes_keep_no_password_and_name_files_wherever_they_are_read() -> None:
    where = Services(BrokerSettings(), "", (), "kafka.toml", "clickhouse://s:secret@h:1/d")
    noted = noted_again(NOTED, where)
    assert (noted.store, noted.own, noted.pid) == ("", (), os.getpid())
    assert noted.broker == str(Path("kafka.toml").resolve())
    named = Services(BrokerSettings(), "", (), "k:9092", "clickhouse://s@h:1/d?password_file=/f")
    assert (noted_again(NOTED, named).broker, noted_again(NOTED, named).store) == (
        "k:9092",
        "clickhouse://s@h:1/d?password_file=/f",
    )


def test_run_with_a_broker_of_its_own_takes_no_other_one(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match=r"the run has a broker of its own in .* and --broker names another"),
        same_services(NOTED, "k:9092", "", tmp_path, print),
    ):
        pass


def test_what_failed_after_the_run_began_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, began in ((tmp_path / "not begun", False), (tmp_path / "be gun", True)):
        if began:
            write_notes(folder, NOTED)
        with pytest.raises(StageTimeoutError), told_how_to_resume(folder):
            raise StageTimeoutError("stood still")
        assert (f"go on with: spade run --resume '{folder}'" in capsys.readouterr().out) == began


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing says what to run"),
        (["tiny", "--resume", "runs/x"], "a recipe and --resume are both given"),
        (["--fork", "runs/x", "--resume", "runs/x"], "--resume and --fork are both given"),
        (["--resume", "runs/x", "--set", "seed=2"], "--set can't be used with --resume: a run can only go on as it began"),
        (["--resume", "runs/x", "--dir", "y"], "--dir can't be used with --resume"),
        (["--resume", "runs/x", "--id", "y"], "--id can't be used with --resume"),
        (["--resume", "runs/x"], "the run's folder runs/x does not exist"),
        (["--resume", "x"], "there is no run x in the folder runs (known: none)"),
        (["--fork", "runs/x"], "--fork needs --at STEP"),
        (["tiny", "--at", "4"], "--at is for --fork"),
        (["--fork", "runs/x", "--at", "4"], "the run's folder runs/x does not exist"),
        (["tiny", "--id", "a/b"], "--id 'a/b' is no run id"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_finished_run_has_nothing_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notes(tmp_path / "run", NOTED)
    mark_finished(tmp_path / "run")
    assert run_app(["run", "--resume", str(tmp_path / "run")]) == 0
    assert f"run {NOTED.run_id} has finished: there is nothing to resume" in capsys.readouterr().out
