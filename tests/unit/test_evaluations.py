"""Evaluations of model folders as files: bits, pairs, shares, and instances by what they show without their wording."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from infra.cli.app import run_app
from infra.cli.evaluation import compare
from infra.cli.options import require_place
from infra.evaluations import make_evaluation, pack_bits, read_evaluations, unpack_bits, write_evaluations
from infra.suites import load_suite
from infra.suites.canonical import canonical, digest, read_digests, write_digests
from schemas.common import pack_floats
from schemas.errors import SettingsError
from schemas.train import EvalFinished


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 64, 2081])
def test_bits_come_back_as_they_were(count: int) -> None:
    values = bytes(random.Random(count).randrange(2) for _ in range(count))
    assert unpack_bits(pack_bits(values), count) == values
    assert len(pack_bits(values)) == 2 * -(-count // 8)


def test_fewer_bits_than_asked_for_are_an_error() -> None:
    with pytest.raises(ValueError, match="8 bits where 9 are due"):
        unpack_bits("ff", 9)


def test_an_evaluation_tells_shares_by_family_and_skill_and_reads_back(tmp_path: Path) -> None:
    items = load_suite("nano")
    won = bytes(items[number % len(items)].family == "chain" for number in range(3 * len(items)))
    made = make_evaluation(items, won, model="m", model_digest="d", suite="nano", salt="s")
    assert made.by_family["chain"] == 1.0
    assert made.by_family["add"] == 0.0
    assert made.by_skill["Mathematical Reasoning"] == 0.5
    assert made.win_rate == pytest.approx(1 / len(made.by_family))
    assert made.low < made.win_rate < made.high
    assert made.results == won
    write_evaluations(tmp_path / "e.json", [made])
    assert read_evaluations(tmp_path / "e.json") == [made]
    (tmp_path / "bad.json").write_text("[{}]")
    with pytest.raises(SettingsError, match=r"bad\.json holds no evaluations"):
        read_evaluations(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("shown", "data"),
    [
        ("add 34+51", "34+51"),
        ("total of 34+51", "34+51"),
        ("last digit of 3+4*2-1", "3+4*2-1"),
        ("follow A by A>B C>D", "A A>B C>D"),
        ("guess 1 to 30", "1 30"),
        ("Add 34 and 51.", "34 51"),
        ("count A in AABAC", "A AABAC"),
        ("hello there", ""),
    ],
)
def test_an_instance_is_its_data_whatever_the_words(shown: str, data: str) -> None:
    assert canonical(shown) == data
    assert bool(digest(shown)) == bool(data)


def test_digests_read_back_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_digests(tmp_path / "d.json", [digest("add 3+4"), ""])
    assert read_digests(tmp_path / "d.json") == [digest("sum 3+4"), ""]
    (tmp_path / "d.json").write_text("{")
    with pytest.raises(SettingsError, match=r"d\.json holds no digests"):
        read_digests(tmp_path / "d.json")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "model folder nowhere can't be read"),
        (["trainer/nano/model", "--version", "1"], "--version and --run are for policies of a run"),
        (["--salt", "x"], "--salt is for model folders, and none is named"),
        (["trainer/nano/model", "--suite", "nope"], "no suite 'nope'"),
        (["trainer/nano/model", "--out", "infra"], "--out infra is a folder"),
        (["trainer/nano/model", "--out", "nowhere/a.json"], "--out nowhere/a.json can't be written (No such file or directory)"),
        (["trainer/nano/model", "--openings", "README.md/a.json"], "--openings README.md/a.json can't be written"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert run_app(["eval", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert told in error


def test_two_policies_are_compared_in_wins_form_and_return() -> None:
    items = load_suite("nano")[:4]

    def record(version: int, won: bytes, formed: bytes, returns: list[float]) -> EvalFinished:
        return EvalFinished(
            run_id="r",
            event_id=str(version),
            suite="nano",
            policy_version=version,
            policy_digest="",
            items=len(won),
            won=won,
            win_rate=sum(won) / len(won),
            formed=formed,
            returns=pack_floats(returns) if returns else b"",
        )

    before = record(0, bytes(8), bytes(8), [0.0] * 8)
    after = record(3, bytes([1, 0] * 4), bytes([1] * 8), [1.0, 0.25] * 4)
    lines = compare(before, after, items).splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "policy 3 against 0, won: +50.0 points",
        "policy 3 against 0, well formed: +100.0 points",
        "policy 3 against 0, return: +0.625",
    ]
    assert "over 4 environments" in lines[0]
    assert len(compare(record(0, bytes(8), bytes(8), []), after, items).splitlines()) == 2


def test_a_store_that_is_away_is_told_before_anything_is_played(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])

    def never(*_: object, **__: object) -> None:
        raise AssertionError("played")

    monkeypatch.setattr("workers.evaluate.evaluate_models", never)
    assert run_app(["eval", "trainer/nano/model", "--store", "clickhouse://spade@127.0.0.1:1/spade"]) == 3
    assert "can't reach store 127.0.0.1:1/spade" in capsys.readouterr().err


def test_a_census_or_a_pool_without_a_place_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    assert run_app(["nano", "census", "--out", str(tmp_path / "no" / "census.json")]) == 2
    assert "can't be written" in capsys.readouterr().err
    assert run_app(["pool", "make", "--size", "1", "--to", str(tmp_path)]) == 2
    assert "is no empty folder" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["letter.txt"]
    place = tmp_path / "there.json"
    require_place(place, "--out")
    assert not place.exists()
    assert len(list(tmp_path.iterdir())) == 1
    place.write_text("before")
    require_place(place, "--out")
    assert place.read_text() == "before"
    require_place(Path("/dev/null"), "--out")


def test_chaos_and_demo_refuse_bad_input_before_they_make_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run_app(["chaos", "tiny", "--set", "model.path=/nope", "--dir", str(folder)]) == 2
    assert "folder /nope does not exist" in capsys.readouterr().err
    assert run_app(["demo", "--set", "evaluation.suite=nope", "--dir", str(folder)]) == 2
    assert "no suite 'nope'" in capsys.readouterr().err
    assert not folder.exists()
