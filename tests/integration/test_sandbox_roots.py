"""The cache of jails' roots: what a process holds stays, whatever others sweep; what nobody uses goes, leftovers too."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.sandbox.root import build_root
from workers.sandbox.rootcache import KEPT, UNUSED_S, hold_root, sweep_roots

pytestmark = pytest.mark.integration

DAY_S = 86_400.0
HOLDER = """
import sys
from pathlib import Path
from workers.sandbox.root import build_root
from workers.sandbox.rootcache import hold_root
for _ in range(int(sys.argv[2])):
    held = hold_root(lambda: build_root(Path(sys.argv[1])))
    print(held.path, flush=True)
    sys.stdin.readline()
    assert (held.path / "bin" / "python3").stat().st_size and list(held.path.glob("lib/python*/spade_runner.pyc"))
    held.release()
"""


def opened_below(folder: Path) -> list[str]:
    """What this process has open there."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]  # noqa: PTH115
    return [link for link in links if link.startswith(str(folder))]


def unused_since(path: Path, age_s: float) -> Path:
    path.mkdir(exist_ok=True)
    (path / "file").touch()
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_root_that_another_process_holds_stays_and_goes_once_that_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        held = unused_since(Path(holder.stdout.readline().strip()), 2 * UNUSED_S)
        unheld = unused_since(tmp_path / "root-unheld", 2 * UNUSED_S)
        assert sweep_roots(tmp_path) == [unheld.name]
        assert (held / "bin" / "python3").is_file()
    finally:
        holder.kill()
        holder.wait(30)
        holder.stdin.close()
        holder.stdout.close()
    assert sweep_roots(tmp_path) == [held.name]
    assert list(tmp_path.iterdir()) == []


def test_process_that_asks_for_a_root_while_another_sweeps_holds_a_whole_one(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), "3"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    held = 0
    while held < 3:
        sweep_roots(tmp_path, unused_s=-1, kept=0, spared_s=-1)
        if select.select([holder.stdout], [], [], 0.005)[0]:
            assert holder.stdout.readline(), "the holder found no whole root"
            held += 1
            assert sweep_roots(tmp_path, unused_s=-1, kept=0, spared_s=-1) == []
            holder.stdin.write("\n")
            holder.stdin.flush()
    assert holder.wait(60) == 0
    holder.stdin.close()
    holder.stdout.close()
    sweep_roots(tmp_path, unused_s=-1, kept=0, spared_s=-1)
    assert list(tmp_path.iterdir()) == []


def test_sweep_keeps_what_was_used_lately_and_takes_the_rest_and_leftovers(tmp_path: Path) -> None:
    many = [unused_since(tmp_path / f"root-{number}", number * DAY_S * 0.45) for number in range(KEPT + 6)]
    lately = [unused_since(tmp_path / f"root-today-{number}", 60.0) for number in range(KEPT + 6)]
    leftovers = [unused_since(tmp_path / f"{kind}-left", 3 * DAY_S) for kind in ("building", "removing")]
    young = unused_since(tmp_path / "building-now", 60.0)
    other = unused_since(tmp_path / "not-of-ours", 99 * DAY_S)

    gone = {path.name for path in [*many[3:], *leftovers]}
    assert set(sweep_roots(tmp_path)) == gone
    assert set(tmp_path.iterdir()) == {*many[:3], *lately, young, other}
    old = unused_since(tmp_path / "root-old", UNUSED_S + 60)
    for path in (*many[:3], *lately):
        unused_since(path, 2 * DAY_S).rename(tmp_path / f"kept-{path.name}")
    assert sweep_roots(tmp_path) == [old.name]


def test_holding_a_root_marks_it_as_used_and_is_undone(tmp_path: Path) -> None:
    unused_since(build_root(tmp_path), 9 * DAY_S)
    held = hold_root(lambda: build_root(tmp_path))
    assert time.time() - held.path.stat().st_mtime < DAY_S
    assert opened_below(tmp_path) == [str(held.path)]
    held.release()
    held.release()
    assert opened_below(tmp_path) == []
