"""The command line without services: help, bad input, exit codes, what is looked at before a run starts."""

from __future__ import annotations

import ast
import importlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kafka.errors import KafkaTimeoutError

from infra import runs
from infra.cli import options, preflight
from infra.cli.app import app, run_app
from infra.cli.interrupts import cleanup, stoppable, undisturbed
from infra.cli.launch import process_specs
from infra.cli.local import tell_up, write_private
from infra.cli.progress import describe
from infra.cli.runs import new_folder, unless_empty
from infra.cli.stages import child_environment
from infra.kafka import unreachable
from schemas.design import SlotsClosed
from schemas.errors import (
    BrokerError,
    CorpusError,
    DiskFullError,
    ModelError,
    SandboxError,
    SettingsError,
    StoreError,
)
from schemas.process import BrokerSettings, ProcessContext
from schemas.train import RoleStats, StepFinished
from tests.chatmodels import write_model
from workers.gate.rules import Refused
from workers.gate.static import ALLOWED_IMPORTS, check_static

COMMANDS = [[command.name] for command in app.registered_commands] + [
    [group.name, command.name]
    for group in app.registered_groups
    if group.typer_instance is not None
    for command in group.typer_instance.registered_commands
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees what `spade up` of this machine's user started, or an address from the environment."""
    monkeypatch.setenv("SPADE_STATE", str(tmp_path / "state"))
    for name in ("SPADE_BROKER", "SPADE_STORE", "SPADE_RUN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("command", [[], ["memory"], *COMMANDS], ids=lambda command: " ".join(map(str, command)) or "spade")
def test_help_shows_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app([*command, "--help"]) == 0
    assert f"Example: {' '.join(['spade', *command])}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "nowhere.toml"], 2, "recipe nowhere.toml does not exist"),
        (["run", "."], 2, "recipe . can't be read (Is a directory)"),
        (["plan", "."], 2, "recipe . can't be read (Is a directory)"),
        (["run", "tiny", "--set", "schedule.stepz=3"], 2, "schedule.stepz: unknown key"),
        (["run", "tiny", "--set", "model.path=/no/such/model"], 2, "model.path: folder /no/such/model does not exist"),
        (["plan", "tiny", "--set", "name=a/b"], 2, "name:"),
        (["plan", "tiny", "--set", "seed=18446744073709551616"], 2, "seed:"),
        (["topics"], 3, "no broker is named and none is up"),
        (["migrate"], 3, "no store is named and none is up"),
        (["topics", "--broker", "missing.toml"], 2, "broker file missing.toml can't be read"),
        (["migrate", "--store", "http://somewhere"], 2, "the store's address is not of the form clickhouse://"),
        (["run", "tiny", "--broker", "foo"], 2, "--broker: 'foo' is not HOST:PORT"),
        (["run", "tiny", "--store", "http://somewhere"], 2, "the store's address is not of the form clickhouse://"),
        (["topics", "--broker", "foo"], 2, "--broker: 'foo' is not HOST:PORT"),
        (["migrate", "--store", "clickhouse://u@h:1/d?password_file=/no"], 2, "Write the password into that file"),
        (["work", "memory"], 3, "no broker is named"),
        (["status"], 3, "no broker is named"),
    ],
)
def test_bad_input_is_one_line_with_cause_and_fix(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    extra = ["--dir", str(tmp_path / "run")] if arguments[0] == "run" else []
    assert run_app([*arguments, *extra]) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert ". " in error.removeprefix("error: ")
    assert not (tmp_path / "run").exists()


def test_a_loop_of_links_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert run_app(["corpus", "add", str(tmp_path / "self"), "--to", str(tmp_path / "corpus")]) != 0
    error = capsys.readouterr().err
    assert error.startswith("error: Symlink loop")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "command", [["run", "tiny", "--dir"], ["nano", "build", "--out"], ["up", "state"]], ids=lambda command: command[0]
)
def test_folder_that_can_not_be_made_is_one_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    if command[-1] == "state":
        monkeypatch.setenv("SPADE_STATE", str(file / "below"))
        command = command[:-1]
    else:
        command = [*command, str(file / "below")]
    assert run_app(command) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "Not a directory" in error
    assert str(file) in error


def test_run_refuses_a_password_that_everybody_sees(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "tiny", "--dir", str(tmp_path / "run"), "--store", "clickhouse://spade:secret@127.0.0.1:1/spade"]
    monkeypatch.setattr(sys, "argv", ["spade", *command])
    assert run_app(command) == 2
    error = capsys.readouterr().err
    assert "--store holds a password" in error
    assert "secret" not in error


@pytest.mark.parametrize("content", ["", "[]", '["a"]', '{"broker": 5}'])
def test_damaged_state_file_is_named(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / options.UP).write_text(content)
    assert run_app(["status"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_gate_reads_plain_files_only_and_no_large_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"#" * 2_000_000)
    for name, told in (
        ("pipe", "not a plain file"),
        ("large", "larger than"),
        ("", "Is a directory"),
        ("missing", "No such file"),
    ):
        assert run_app(["gate", str(tmp_path / name)]) == 2
        assert told in capsys.readouterr().err


def test_two_faults_of_a_recipe_are_two_lines_and_the_fix_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["plan", "tiny", "--set", "schedule.stepz=3", "--set", "train.threadz=2"]) == 2
    first, second, fix = capsys.readouterr().err.splitlines()
    assert first.startswith("error: --set schedule.stepz: unknown key (did you mean schedule.steps?)")
    assert second.startswith("error: --set train.threadz: unknown key (did you mean train.threads?)")
    assert fix == "Correct or remove the keys"


def test_a_file_that_the_gate_can_not_read_is_told_as_any_other_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_app(["gate", str(tmp_path / "nothere.py")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path / 'nothere.py'}: No such file or directory. Give a Python file")
    assert error.count("\n") == 1


def test_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["run", "tiny", "--colour", "blue"]) == 2
    assert "colour" in capsys.readouterr().err


def test_broker_file_holds_what_an_address_can_not(tmp_path: Path) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text('address = "a:1,b:2"\nsecurity_protocol = "SASL_SSL"\nusername = "u"\npassword_file = "/secret"\n')
    settings = options.require_broker(str(file))
    assert (settings.address, settings.security_protocol, settings.password_file) == ("a:1,b:2", "SASL_SSL", "/secret")
    file.write_text('adress = "a:1"\n')
    with pytest.raises(SettingsError, match="adress"):
        options.require_broker(str(file))


def test_state_of_up_is_used_unless_an_address_is_given(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    write_private(state / "up.json", json.dumps({"broker": "127.0.0.1:7", "store": "clickhouse://s@127.0.0.1:8/spade"}))
    assert stat.S_IMODE((state / "up.json").stat().st_mode) == 0o600
    assert options.require_broker("").address == "127.0.0.1:7"
    assert options.require_broker("other:9").address == "other:9"
    assert options.require_store("") == "clickhouse://s@127.0.0.1:8/spade"
    (state / "up.json").write_text("{")
    with pytest.raises(SettingsError, match="damaged"):
        options.require_broker("")


def test_nothing_named_and_nothing_up_says_how_to_get_one() -> None:
    with pytest.raises(BrokerError, match="spade up"):
        options.require_broker("")
    with pytest.raises(StoreError, match="spade up"):
        options.require_store("")


def test_child_gets_its_addresses_by_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = BrokerSettings(address="k:1", security_protocol="SASL_SSL", username='we"ird', password_file="/secret", timeout_s=7)
    context = ProcessContext(broker=broker, store_dsn="clickhouse://s@h:1/d", run_id="run-1", state_dir=str(tmp_path))
    for name, value in child_environment(context).items():
        monkeypatch.setenv(name, value)
    assert options.require_broker(os.environ["SPADE_BROKER"]) == broker
    assert os.environ["SPADE_STORE"] == context.store_dsn


def test_run_never_overwrites_another(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    assert new_folder(str(tmp_path / "old"), "x") == tmp_path / "old"
    (tmp_path / "old" / "weights").touch()
    with pytest.raises(SettingsError, match="not an empty folder"):
        new_folder(str(tmp_path / "old"), "x")


def test_failed_start_leaves_no_empty_folder_and_keeps_what_stood(tmp_path: Path) -> None:
    def fail(folder: Path, *, filled: bool) -> None:
        with unless_empty(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if filled:
                (folder / "log").touch()
            raise BrokerError("no broker")

    for folder, filled in ((tmp_path / "runs" / "one", False), (tmp_path / "runs" / "two", True)):
        with pytest.raises(BrokerError):
            fail(folder, filled=filled)
        assert (tmp_path / "runs").exists() == filled
    (tmp_path / "mine").mkdir()
    with pytest.raises(BrokerError):
        fail(tmp_path / "mine", filled=False)
    assert (tmp_path / "mine").exists()


def test_gate_help_shows_an_environment_that_keeps_the_rules(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_app(["gate", "--help"]) == 0
    shown = [line[1:].rstrip() for line in capsys.readouterr().out.splitlines()]
    first = shown.index("import random")
    source = "\n".join(shown[first : shown.index("", first)]) + "\n"
    tree = check_static(source, ALLOWED_IMPORTS)
    assert isinstance(tree.body[-1], ast.ClassDef)
    with pytest.raises(Refused, match="line 2: "):
        check_static("import random\nclass\n", ALLOWED_IMPORTS)


def test_down_says_what_it_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state" / "broker").mkdir(parents=True)
    assert run_app(["down", "--wipe"]) == 0
    assert "nothing was up; removed the data of broker in" in capsys.readouterr().out
    assert not (tmp_path / "state" / "broker").exists()
    assert run_app(["down", "--wipe"]) == 0
    assert "there was no data" in capsys.readouterr().out


def test_unknown_run_is_refused_with_the_newest_known(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = BrokerSettings(address="h:1")
    monkeypatch.setattr(runs, "read_runs", lambda _: ([f"run-{n}" for n in range(9, 0, -1)], {"run-9"}))
    assert (runs.find_run(broker), runs.find_run(broker, "run-1"), runs.newest_run(broker)) == ("run-8", "run-1", "run-8")
    with pytest.raises(SettingsError, match=r"there is no run nosuch at h:1 \(known: run-9, .*run-5, \.\.\.\)"):
        runs.find_run(broker, "nosuch")
    monkeypatch.setattr(runs, "read_runs", lambda _: (["run-1"], {"run-1"}))
    assert (runs.find_run(broker), runs.newest_run(broker)) == ("run-1", "")
    monkeypatch.setattr(runs, "read_runs", lambda _: ([], set()))
    with pytest.raises(SettingsError, match="holds no run"):
        runs.find_run(broker)


def test_up_tells_a_port_that_it_does_not_use(capsys: pytest.CaptureFixture[str]) -> None:
    tell_up("broker", "127.0.0.1:7", 9, 7)
    assert "the broker is up already at 127.0.0.1:7; port 9 is not used" in capsys.readouterr().out
    tell_up("broker", "127.0.0.1:7", None, 7)
    assert "not used" not in capsys.readouterr().out


def test_broker_error_names_its_class_once() -> None:
    told = str(unreachable(BrokerSettings(address="h:1"), KafkaTimeoutError("Unable to bootstrap")))
    assert told.count("KafkaTimeoutError") == 1
    assert "OSError: gone" in str(unreachable(BrokerSettings(address="h:1"), OSError("gone")))


def test_kafka_client_warnings_stay_out_of_the_log() -> None:
    run_app(["status"])
    assert not logging.getLogger("kafka.net.manager").isEnabledFor(logging.ERROR)
    assert not logging.getLogger("kafka.conn").isEnabledFor(logging.WARNING)
    assert logging.getLogger("kafka.conn").isEnabledFor(logging.ERROR)


def test_processes_follow_the_recipe() -> None:
    recipe = options.read_recipe("tiny", ["processes.rollout_workers=2", "processes.design_workers=0"])
    names = [spec.name for spec in process_specs(recipe)]
    assert len(set(names)) == len(names)
    streams = {f"stream-{stage}-0" for stage in ("design", "rollout", "score", "batch")}
    assert set(names) == streams | {"train", "work-validate-0", "work-rollout-0", "work-rollout-1", "work-memory-0"}


def test_incomplete_model_folder_names_the_file(tmp_path: Path) -> None:
    recipe = options.read_recipe("tiny", [f"model.path={tmp_path}"])
    with pytest.raises(ModelError, match=r"has no config\.json"):
        preflight.check_model(recipe)
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModel": "evil.py"}}')
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelError, match="auto_map"):
        preflight.check_model(recipe)
    (tmp_path / "config.json").write_text("{}")
    assert preflight.check_model(recipe) == tmp_path


def test_a_model_in_shards_is_whole_by_its_index(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    recipe = options.read_recipe("tiny", [f"model.path={tmp_path}"])
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        preflight.check_model(recipe)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert preflight.check_model(recipe) == tmp_path


def test_a_model_that_can_not_be_spoken_to_is_refused_before_the_run(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "smol")
    chat = [f"model.path={folder}", "model.dialect=games", "rollout.context_tokens=8000"]
    preflight.check_dialect(options.read_recipe("tiny", chat), folder)
    with pytest.raises(
        SettingsError, match=r"leaves 500 tokens beside .* \(7500\), a design's prompt without any document takes"
    ):
        preflight.check_dialect(options.read_recipe("tiny", [*chat, "design.sampling.max_tokens=7500"]), folder)
    with pytest.raises(ModelError, match="no token <pad>"):
        preflight.check_dialect(options.read_recipe("tiny"), folder)
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match="no chat template"):
        preflight.check_dialect(options.read_recipe("tiny", chat), folder)


def test_a_sampler_that_is_not_installed_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    preflight.check_samplers(options.read_recipe("tiny"))
    with pytest.raises(SettingsError, match=r"vllm is asked for, and it is not installed here\. Run `make install-vllm`"):
        preflight.check_samplers(options.read_recipe("tiny", ["processes.sampler=vllm"]))


def test_the_key_of_an_external_designer_is_looked_at_before_anything_starts(tmp_path: Path) -> None:
    named = ["designer=external", "external.url=https://models.example.com/v1", "external.model=m", "external.mode=tokens"]
    preflight.check_samplers(options.read_recipe("tiny", named))
    with pytest.raises(SettingsError, match=r"external\.key_file: .*missing can't be read"):
        preflight.check_samplers(options.read_recipe("tiny", [*named, f"external.key_file={tmp_path / 'missing'}"]))


def test_gate_knows_the_forms_of_the_settings_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["gate", str(tmp_path / "env.py"), "--setting", "chess"]) == 2
    assert "--setting 'chess' is not known. Name one of: plain, games, tools" in capsys.readouterr().err


def test_corpus_file_that_is_no_text_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "good.md").write_text("# Title\nsome words\n")
    (tmp_path / "picture.md").write_bytes(b"\x89PNG\xff\xfe\x00")
    with pytest.raises(CorpusError, match=r"picture\.md"):
        preflight.check_corpus(options.read_recipe("tiny", [f"corpus.path={tmp_path}"]))
    (tmp_path / "picture.md").unlink()
    assert preflight.check_corpus(options.read_recipe("tiny", [f"corpus.path={tmp_path}"])) == 1


def test_disk_without_room_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preflight.check_disk(tmp_path / "run", tmp_path)
    monkeypatch.setattr(preflight, "LEAST_FREE_BYTES", 2**60)
    with pytest.raises(DiskFullError, match=r"MiB free.*--dir"):
        preflight.check_disk(tmp_path / "run", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="can't be made"):
        preflight.check_disk(tmp_path / "file" / "run", tmp_path)


def test_recipe_that_asks_for_a_stronger_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = importlib.import_module("workers.sandbox.probe")
    report = probe.SandboxReport("rootless", "not run by root", "Run as root", "/nsjail", 2)
    monkeypatch.setattr(probe, "probe", lambda: report)
    assert preflight.check_sandbox(options.read_recipe("tiny")) == "rootless"
    with pytest.raises(SandboxError, match=r"full is asked for, this machine reaches rootless: not run by root\. Run as root"):
        preflight.check_sandbox(options.read_recipe("tiny", ["sandbox.level=full"]))


def test_progress_lines_tell_the_numbers() -> None:
    closed = SlotsClosed(
        run_id="r",
        event_id="e",
        generation=3,
        policy_version=1,
        members=[],
        proposed=32,
        rejected_by_rule={"witness": 2, "parse": 1},
    )
    assert describe(closed) == "generation 3   designed: 0 of 32 valid (refused: parse 1, witness 2)"
    step = StepFinished(
        run_id="r", event_id="e", step=7, drain=False, roles={"agent": RoleStats(samples=400, ess=0.9, lag_max=1)}
    )
    assert "agent 400 samples (ESS 0.90, lag 1); policy 8 published" in describe(step)
    skipped = StepFinished(run_id="r", event_id="e", step=7, drain=False, skipped="loss is not finite")
    assert describe(skipped) == "step 7   no update (loss is not finite)"


def test_signal_in_an_undisturbed_section_is_kept_until_its_end() -> None:
    reached = []

    def interrupted() -> None:
        with stoppable(), undisturbed():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == [True]


def test_signal_during_cleanup_is_ignored() -> None:
    with stoppable():
        with cleanup():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        assert threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_waiting_command_with_130(number: signal.Signals, tmp_path: Path) -> None:
    code = (
        "import sys, typer; from infra.cli import app as a; from infra.cli.interrupts import stoppable\n"
        "import time\n"
        "def wait() -> None:\n"
        "    with stoppable():\n"
        "        print('ready', flush=True); time.sleep(60)\n"
        "a.app.command('wait')(wait)\n"
        "sys.exit(a.run_app(['wait']))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(number)
    assert child.wait(timeout=20) == 130
    child.stdout.close()
