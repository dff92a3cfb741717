"""Migrations go up once, come down, and refuse a database that they do not know."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

import pytest

from infra.clickhouse import connect
from infra.local.store import LocalStore
from infra.migrate import FOLDER, migrate, roll_back
from schemas.errors import MigrationError

pytestmark = pytest.mark.integration


@pytest.fixture
def dsn(store: LocalStore) -> str:
    """A database of this test's own on the shared store."""
    return store.dsn.replace("/spade?", f"/m_{uuid.uuid4().hex[:10]}?")


def tables(dsn: str) -> set[str]:
    client = connect(dsn)
    names = {row["name"] for row in client.query("SHOW TABLES")}
    client.close()
    return names


def test_up_is_idempotent_and_down_removes_what_up_made(dsn: str) -> None:
    versions = sorted(int(path.name[:3]) for path in FOLDER.glob("*.up.sql"))
    assert migrate(dsn) == versions
    made = tables(dsn)
    assert {"runs", "episodes", "environments", "dead_letters"} <= made
    assert migrate(dsn) == []
    assert roll_back(dsn, len(versions)) == versions[::-1]
    assert tables(dsn) == {"schema_versions"}
    assert migrate(dsn) == versions
    assert tables(dsn) == made


def test_a_database_that_is_ahead_is_refused(dsn: str, tmp_path: Path) -> None:
    migrate(dsn)
    older = tmp_path / "older"
    shutil.copytree(FOLDER, older)
    for path in older.glob("002_*"):
        path.unlink()
    with pytest.raises(MigrationError, match=r"does not fit this code's migrations .*Use the version of spade that made it"):
        migrate(dsn, older)


def test_a_changed_migration_is_refused(dsn: str, tmp_path: Path) -> None:
    migrate(dsn)
    changed = tmp_path / "changed"
    shutil.copytree(FOLDER, changed)
    first = next(changed.glob("001_*.up.sql"))
    first.write_text(first.read_text() + "\n-- another\n")
    with pytest.raises(MigrationError, match="md5 is not equal"):
        migrate(dsn, changed)


def test_an_episode_from_before_its_tokens_were_stored_outlives_the_migration_up_and_down(dsn: str, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(FOLDER, older)
    for path in older.glob("01*"):
        path.unlink()
    migrate(dsn, older)
    client = connect(dsn)
    try:
        client.insert("episodes", ["run_id", "play_id", "tokens", "_version"], [["r", "old", 7, 1]])
        assert migrate(dsn)[0] == 10
        client.insert(
            "episodes",
            ["run_id", "play_id", "tokens", "token_ids", "logprobs", "_version"],
            [["r", "new", 2, [5, 151_668], [0.0, -0.5], 1]],
        )
        found = client.query("SELECT play_id, tokens, token_ids, logprobs, tries FROM episodes FINAL ORDER BY play_id DESC")
        assert found == [
            {"play_id": "old", "tokens": 7, "token_ids": [], "logprobs": [], "tries": 0},
            {"play_id": "new", "tokens": 2, "token_ids": [5, 151_668], "logprobs": [0.0, -0.5], "tries": 0},
        ]
        roll_back(dsn, len(list(FOLDER.glob("01*.up.sql"))))
        assert client.query("SELECT play_id FROM episodes FINAL ORDER BY play_id") == [{"play_id": "new"}, {"play_id": "old"}]
    finally:
        client.close()


def test_standings_from_before_their_order_by_regret_are_in_it_after_the_migration(dsn: str, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(FOLDER, older)
    for path in older.glob("*.sql"):
        if path.name >= "013":
            path.unlink()
    migrate(dsn, older)
    ordered = (
        "SELECT sum(rows) AS n FROM system.projection_parts WHERE active AND database = currentDatabase() AND name = 'by_regret'"
    )
    client = connect(dsn)
    try:
        columns = ["run_id", "skill", "env_id", "generation", "measured", "regret", "_version"]
        client.insert("standings", columns, [["r", "s", f"e{place}", place, place, 0.1, 1] for place in range(5)])
        applied = migrate(dsn)
        assert applied[0] == 13
        assert client.query(ordered) == [{"n": 5}]
        client.insert("standings", columns, [["r", "s", "e0", 0, 3, 0.2, 1]])
        client.command("OPTIMIZE TABLE standings FINAL")
        assert client.query(ordered) == [{"n": 6}]
        assert roll_back(dsn, len(applied)) == applied[::-1]
        assert client.query(ordered) == [{"n": 0}]
        assert client.query("SELECT count() AS n FROM standings FINAL") == [{"n": 6}]
    finally:
        client.close()


def test_every_migration_can_be_undone_and_every_table_drops_repeated_blocks() -> None:
    ups = {path.name.removesuffix(".up.sql") for path in FOLDER.glob("*.up.sql")}
    assert ups == {path.name.removesuffix(".down.sql") for path in FOLDER.glob("*.down.sql")}
    text = "".join(path.read_text() for path in FOLDER.glob("*.up.sql"))
    made = len(re.findall(r"CREATE TABLE", text))
    assert made == text.count("ENGINE = ReplacingMergeTree(_version)") == text.count("non_replicated_deduplication_window")
