"""`spade memory` over the real engine: what it tells of a run, what it exports, and that a question can do nothing but ask."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.cli.app import run_app
from infra.cli.memoryviews import VIEWS
from infra.cli.rundir import Notes, write_notes
from infra.clickhouse import ClickHouseStore, connect
from infra.dashboards.panels import load_panels
from infra.local.store import LocalStore
from infra.migrate import migrate
from infra.question import ask_question
from schemas.errors import SpadeError
from tests.generatedrun import HINT, MEMBERS, REFUSED, GeneratedRun

pytestmark = pytest.mark.integration

GENERATIONS = 3
RUN = "memory-command"


@pytest.fixture(scope="module")
def client(store: LocalStore) -> Iterator[ClickHouseStore]:
    opened = connect(store.dsn)
    GeneratedRun(RUN, GENERATIONS).fill(opened)
    opened.command("SYSTEM STOP MERGES")  # a merge drops the copies of a row, so rows would change on their own
    yield opened
    opened.command("SYSTEM START MERGES")
    opened.close()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: ClickHouseStore) -> None:
    """What stands here is `runs` in an own folder, and the made-up run in the shared store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPADE_STATE", str(tmp_path / "state"))
    for name in ("SPADE_STORE", "SPADE_RUN"):
        monkeypatch.delenv(name, raising=False)


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run_app(["memory", *arguments]) == code, capsys.readouterr().err
    found = capsys.readouterr()
    return found.err if code else found.out


def test_the_views_are_the_panels_of_their_kind() -> None:
    assert tuple(name for name, panel in load_panels().items() if panel.kind == "view") == VIEWS


def test_the_views_count_what_the_run_recorded(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(told(capsys, "--store", store.dsn, "--run", RUN, "--json"))
    assert found["run_id"] == RUN
    rows = {name: view["rows"] for name, view in found["views"].items()}
    assert tuple(rows) == VIEWS
    by_skill = {row["skill"]: row for row in rows["coverage"]}
    assert sum(row["designs"] for row in by_skill.values()) == GENERATIONS * (MEMBERS + len(REFUSED))
    assert sum(row["admitted"] for row in by_skill.values()) == GENERATIONS * MEMBERS
    bands = ("too hard", "hard", "frontier", "easy", "too easy")  # win rates .05, .23, .41, .59, .77, .95
    assert [sum(row[band] for row in by_skill.values()) for band in bands] == [GENERATIONS * n for n in (1, 1, 2, 1, 1)]
    assert len(rows["top_regret"]) == GENERATIONS * MEMBERS
    assert rows["top_regret"][0]["lower bound"] == pytest.approx(0.1 - 0.6 * 0.05)
    assert rows["top_regret"][0]["hint"] == HINT  # as it was written
    assert {row["similarity"] for row in rows["most_repeated"]} == {0.9}
    assert len(rows["most_repeated"]) == GENERATIONS
    assert {(row["by"], row["reason"]): row["rejected"] for row in rows["rejections"]} == {
        ("gate", rule): GENERATIONS for rule, _ in REFUSED
    }
    assert sum(row["share"] for row in rows["rejections"]) == pytest.approx(len(REFUSED) / (MEMBERS + len(REFUSED)))


def test_stage_timings_tell_when_each_stage_worked_on_a_generation(client: ClickHouseStore) -> None:
    sql = "SELECT stage, step, seconds, records FROM stage_timings WHERE run_id = {run:String} AND generation = 1 ORDER BY begun"
    rows = client.query(sql, {"run": RUN})
    designs = MEMBERS + len(REFUSED)
    assert {row["stage"]: (row["step"], row["records"]) for row in rows} == {
        "design": (-1, designs), "validate": (-1, designs), "play": (-1, 4 * MEMBERS), "score": (-1, MEMBERS), "train": (1, 1)
    }  # fmt: skip
    seconds = {row["stage"]: row["seconds"] for row in rows}  # as tests/generatedrun.py makes them: a design a second
    assert seconds == pytest.approx({"design": designs, "validate": designs, "play": 11, "score": 20, "train": 3}, abs=0.01)


def test_copies_of_equal_code_are_counted(client: ClickHouseStore, store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ["run_id", "generation", "env_id", "slot", "skill", "valid", "source_digest", "rule"]
    rows = [["copies", number, f"env-{number}", 0, "sums", True, "equal", ""] for number in range(4)]
    client.insert("verdicts", columns, [*rows, ["copies", 9, "other", 0, "sums", True, "single", ""]])
    client.insert("rewards", ["run_id", "generation", "env_id", "valid", "evicted"], [["copies", 9, "other", True, "unfair"]])
    views = json.loads(told(capsys, "--store", store.dsn, "--run", "copies", "--json"))["views"]
    (row,) = views["most_repeated"]["rows"]
    assert (row["environment"], row["copies"], row["last generation"], row["win rate"]) == ("env-0", 4, 3, None)
    (out,) = views["rejections"]["rows"]
    assert (out["by"], out["reason"], out["rejected"], out["share"]) == ("play", "unfair", 1, 0.2)


def test_the_terminal_shows_every_view_and_nothing_that_acts_on_it(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "--store", store.dsn, "--run", RUN)
    for name in VIEWS:
        assert load_panels()[name].title in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "witness" in shown


def test_all_views_become_csv_files(store: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "--store", store.dsn, "--run", RUN, "--csv", "--out", str(tmp_path / "views"))
    assert {file.name for file in (tmp_path / "views").iterdir()} == {f"{name}.csv" for name in VIEWS}
    with (tmp_path / "views" / "top_regret.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["hint"] == HINT
    assert rows[0]["uncredited"] == "false"
    assert float(rows[0]["regret"]) == 0.1


def test_a_question_is_answered_with_types_and_the_runs_id(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    sql = (
        "SELECT toUInt64(18446744073709551615) AS big, toDecimal64(1.5, 2) AS exact, [1, 2] AS many, map('a', 1) AS named, "
        "toDateTime64('2026-01-02 03:04:05.006', 3, 'UTC') AS at, true AS yes, NULL AS no, 0/0 AS nan, '=1+1' AS formula, "
        "(SELECT count() FROM generations FINAL WHERE run_id = {run:String}) AS closed;"
    )
    found = json.loads(told(capsys, "--store", store.dsn, "--run", RUN, "--sql", sql, "--json"))
    assert found["rows"] == [
        {
            "big": 2**64 - 1, "exact": "1.50", "many": [1, 2], "named": {"a": 1}, "at": "2026-01-02T03:04:05.006000Z",
            "yes": True, "no": None, "nan": None, "formula": "=1+1", "closed": GENERATIONS,
        }
    ]  # fmt: skip
    assert [column["type"] for column in found["columns"]][:3] == ["UInt64", "Decimal(18, 2)", "Array(UInt8)"]
    text = told(capsys, "--store", store.dsn, "--run", RUN, "--sql", "SELECT '=1+1' AS formula, -1 AS n", "--csv")
    assert list(csv.reader(io.StringIO(text))) == [["formula", "n"], ["'=1+1", "-1"]]
    assert "18" in told(
        capsys, "--store", store.dsn, "--sql", f"SELECT count() AS n FROM rewards FINAL WHERE run_id = '{RUN}' AND valid"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sql", "SELECT 1", "--view", "coverage"], "both say what is asked"),
        (["--json", "--csv"], "both say how"),
        (["--csv"], "4 views make 4 CSV files"),
        (["--view", "nothing"], "there is no view nothing"),
        (["--out", "x"], "--out needs a format"),
        (["--raw", "--json"], "--raw goes with --csv"),
        (["--run", "no-such-run"], "holds nothing of run no-such-run"),
        (["--sql", ";"], "the question is empty"),
        (["--sql", "SELEC 1"], "refused"),
        (["--sql", "SELECT 1", "--json", "--out", "/proc/none/x"], "can't be written"),
    ],
)
def test_what_can_not_be_asked_is_one_line(
    arguments: list[str], message: str, store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    code = 3 if "SELEC 1" in arguments else 2
    error = told(capsys, "--store", store.dsn, *arguments, code=code)
    assert message in error
    assert error.count("\n") == 1


ATTACKS = [
    "INSERT INTO runs (run_id) SELECT 'x'",
    "INSERT INTO runs (run_id) VALUES ('x')",
    "SELECT 1; INSERT INTO runs (run_id) VALUES ('x')",
    "SELECT 1; SELECT 2",
    "SELECT 1;; DROP TABLE runs",
    "SELECT 1 -- \n; DROP TABLE runs",
    "DROP TABLE runs",
    "TRUNCATE TABLE runs",
    "ALTER TABLE runs DELETE WHERE 1",
    "DELETE FROM runs WHERE 1",
    "OPTIMIZE TABLE runs FINAL",
    "CREATE TABLE x (a Int32) ENGINE = Memory",
    "CREATE TEMPORARY TABLE x (a Int32)",
    "CREATE FUNCTION f AS (x) -> x",
    "CREATE USER u",
    "ATTACH TABLE x",
    "RENAME TABLE runs TO r",
    "SYSTEM SHUTDOWN",
    "KILL QUERY WHERE 1",
    "SET readonly = 0",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 SETTINGS max_execution_time = 0, readonly = 2",
    "SELECT * FROM (SELECT 1 SETTINGS readonly = 0)",
    "WITH x AS (SELECT * FROM file('/etc/passwd', 'LineAsString')) SELECT * FROM x",
    "SELECT * FROM file('/etc/passwd', 'LineAsString')",
    "SELECT * FROM `file`('/etc/passwd', 'LineAsString')",
    "SELECT * FROM /**/ FiLe /**/ ('/etc/passwd', 'LineAsString')",
    "SELECT file('/etc/passwd')",
    "SELECT (SELECT line FROM file('/etc/passwd', 'LineAsString') LIMIT 1)",
    "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM urlCluster('c', 'http://127.0.0.1:1/', 'LineAsString')",
    "DESCRIBE url('http://127.0.0.1:1/', 'LineAsString')",
    "EXPLAIN SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
    "SELECT * FROM s3('http://127.0.0.1:1/x')",
    "SELECT * FROM remote('127.0.0.1:1', system.one)",
    "SELECT * FROM mysql('127.0.0.1:1', 'd', 't', 'u', 'p')",
    "SELECT * FROM postgresql('127.0.0.1:1', 'd', 't', 'u', 'p')",
    "SELECT * FROM sqlite('/tmp/x', 't')",
    "SELECT * FROM executable('ls', 'TSV', 'a String')",
    "SELECT * FROM Python(os)",
    "SELECT * FROM merge('system', '.*')",
    "SELECT * FROM loop(system.processes)",
    "SELECT * FROM viewIfPermitted(SELECT 1 ELSE null('a Int8'))",
    "SELECT * FROM cluster('default', system.processes)",
    "SELECT * FROM default.`/etc/passwd`",
    "SELECT * FROM `/etc/passwd`",
    "SELECT 1 INTO OUTFILE '/tmp/never'",
    "SELECT 1 AS `a\nFoo` INTO OUTFILE '/tmp/never'",
    "SELECT 1 AS `a\\nFoo` INTO OUTFILE '/tmp/never'",
    "SELECT * FROM system.processes",
    "SELECT * FROM `system`.`processes`",
    'SELECT * FROM "system"."processes"',
    "SELECT * FROM system . processes",
    "SELECT 1 WHERE 'x' IN system.processes",
    "SELECT 1 WHERE 'x' GLOBAL IN (SELECT query FROM system.processes)",
    "SELECT * FROM system.users",
    "SELECT * FROM system.named_collections",
    "SELECT * FROM system.settings",
    "SELECT * FROM system.server_settings",
    "SELECT * FROM system.disks",
    "SELECT * FROM system.dictionaries",
    "SELECT * FROM system.errors",
    "SELECT * FROM system.query_log",
    "DESCRIBE system.processes",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM INFORMATION_SCHEMA.TABLES",
    "SHOW PROCESSLIST",
    "SHOW USERS",
    "SHOW GRANTS",
    "SHOW CREATE USER CURRENT_USER",
    "SHOW ACCESS",
    "SHOW SETTINGS LIKE '%'",
    "SHOW NAMED COLLECTIONS",
    "SELECT reverseDNSQuery('127.0.0.1')",
    "SELECT dictGet('d', 'a', 1)",
    "SELECT joinGet('j', 'a', 1)",
    "SELECT sleep(3)",
    "SELECT getMacro('x')",
    "SELECT getServerSetting('max_connections')",
    "USE system",
    "BACKUP TABLE runs TO Disk('d', 'x')",
    "",
    "   ;",
]


def state_of(client: ClickHouseStore) -> object:
    tables = client.query("SELECT name, total_rows FROM system.tables WHERE database = currentDatabase() ORDER BY name")
    return [(row["name"], row["total_rows"]) for row in tables]


@pytest.mark.parametrize("statement", ATTACKS)
def test_a_question_can_do_nothing_but_ask(client: ClickHouseStore, statement: str) -> None:
    before = state_of(client)
    with pytest.raises(SpadeError):
        ask_question(client, statement)
    assert state_of(client) == before
    assert not Path("/tmp/never").exists()


@pytest.mark.parametrize("statement", [one for one in ATTACKS if one.strip(" ;")])
def test_the_embedded_engine_refuses_it_too_whoever_asks(client: ClickHouseStore, statement: str) -> None:
    before = state_of(client)
    with pytest.raises(SpadeError):
        client.query(statement, readonly=True)
    assert state_of(client) == before
    assert not Path("/tmp/never").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count() FROM runs FINAL -- how many; there are",
        "SELECT 'INSERT INTO x; DROP TABLE y' AS `a column`",
        "WITH x AS (SELECT 1 AS a) SELECT a FROM x UNION ALL SELECT 2",
        "SELECT env_id, argMax(win_rate, generation) FROM rewards GROUP BY env_id LIMIT 3",
        "SELECT e.env_id FROM environments AS e INNER JOIN episodes AS p ON p.env_id = e.env_id LIMIT 1",
        "SELECT name FROM system.columns WHERE database = 'spade' AND table = 'runs'",
        "SELECT number FROM numbers(3)",
        "SELECT * FROM system.one",
        "SHOW TABLES",
        "show full tables like 'r%'",
        "SHOW CREATE TABLE runs",
        "DESCRIBE runs",
        "EXISTS runs",
        "EXPLAIN SELECT * FROM runs",
        "SELECT 1;",
    ],
)
def test_a_question_about_the_tables_is_answered(client: ClickHouseStore, statement: str) -> None:
    assert ask_question(client, statement).rows


def test_an_endless_answer_ends_with_its_cause(client: ClickHouseStore) -> None:
    with pytest.raises(SpadeError, match=r"(?i)limit"):
        ask_question(client, "SELECT number FROM numbers(100000000000)")


def test_a_system_database_can_not_be_asked_by_its_address(store: LocalStore) -> None:
    with_system = connect(store.dsn.replace("/spade?", "/system?"))
    try:
        with pytest.raises(SpadeError, match="database system"):
            ask_question(with_system, "SELECT * FROM processes")
        with pytest.raises(SpadeError):
            with_system.query("SELECT * FROM processes", readonly=True)
    finally:
        with_system.close()


def test_a_run_that_has_ended_is_found_in_its_folder_with_its_own_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "first"
    own = LocalStore.start(folder / "store")
    try:
        migrate(own.dsn)
        opened = connect(own.dsn)
        GeneratedRun("ended", 1).fill(opened)
        opened.close()
        write_notes(folder, Notes(run_id="ended", recipe_json="{}", own=("store",)))
        assert json.loads(told(capsys, "--json"))["run_id"] == "ended"  # while its store runs
    finally:
        own.stop()
    assert json.loads(told(capsys, "--json"))["run_id"] == "ended"  # started for the command
    assert LocalStore.attach(folder / "store") is None
    assert "6" in told(capsys, "--dir", "ended", "--sql", "SELECT count() FROM scores WHERE run_id = {run:String}", "--csv")
    assert "no run other" in told(capsys, "--dir", "other", code=2)
    env_id = GeneratedRun("ended", 1).env_id(0, 0)
    assert run_app(["why", env_id, "--dir", "ended", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["env_id"] == env_id
    assert run_app(["why", env_id]) == 0  # the newest run here
    assert env_id in capsys.readouterr().out
    tables = {row["table"]: row["rows"] for row in json.loads(told(capsys, "digest", "--dir", "ended", "--json"))["tables"]}
    assert (tables["scores"], tables["generations"]) == (6, 1)
    assert LocalStore.attach(folder / "store") is None
