"""`spade export`: the policy that was asked for, whole, in a folder that was not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.cli.app import run_app
from infra.cli.rundir import Notes, write_notes
from infra.policystore import PolicyStore


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder with the policies 0 and 3."""
    folder = tmp_path / "run"
    write_notes(folder, Notes(run_id="r-1", recipe_json="{}"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    for version in (0, 3):
        (model / "model.safetensors").write_bytes(b"weights %d" % version)
        PolicyStore(str(folder / "policies")).publish(version, model)
    return folder


@pytest.mark.parametrize(("asked", "weights"), [([], b"weights 3"), (["--version", "0"], b"weights 0")])
def test_a_policy_is_copied_whole(run_dir: Path, tmp_path: Path, asked: list[str], weights: bytes) -> None:
    out = tmp_path / "deep" / "out"
    assert run_app(["export", str(run_dir), "--out", str(out), *asked]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert (out / "model.safetensors").read_bytes() == weights
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_damaged_policy_is_passed_over_and_what_is_missing_is_named(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (newest,) = PolicyStore(str(run_dir / "policies")).versions()[3]
    (newest / "model.safetensors").write_bytes(b"weights 4")
    assert run_app(["export", str(run_dir), "--out", str(tmp_path / "a"), "--version", "3"]) == 2
    assert "run r-1 keeps no whole policy 3 (versions that stand there: 0, 3)" in capsys.readouterr().err
    assert run_app(["export", str(run_dir), "--out", str(tmp_path / "b")]) == 0
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == b"weights 0"


def test_a_folder_that_exists_is_left_alone(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["export", str(run_dir), "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path} exists already" in " ".join(capsys.readouterr().err.split())
