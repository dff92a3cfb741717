"""`spade ablate` over a run that has finished: its figures, its evaluations by real children, results, table; and nothing twice.

The run is the session's, in a folder of its own; the two ablations' arms are base and self-play.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.ablation.collect import collect, read_openings
from infra.ablation.results import read_results
from infra.cli.modeleval import remember
from infra.cli.options import read_recipe
from infra.cli.poolmaking import PoolOrder, make_pool
from infra.cli.rundir import read_notes
from infra.clickhouse import connect
from infra.corpus.pool import load_pool
from infra.evaluations import make_evaluation
from infra.local.store import LocalStore
from infra.suites import load_suite, suite_lines
from infra.suites.canonical import digest
from schemas.errors import SettingsError
from schemas.rollout import RolloutFinished
from schemas.score import GenerationClosed
from schemas.train import StepFinished
from tests.generatedrun import GeneratedRun
from tests.processlist import command_lines
from tests.tinyrun import STEPS, TinyRun, environment

pytestmark = pytest.mark.integration
ITEMS = 6


@dataclass(frozen=True)
class Bench:
    """Where the ablation works, and how it is called."""

    home: Path
    suite: Path

    @property
    def results(self) -> Path:
        return self.home / "results"

    def command(self, *more: str, steps: int = STEPS) -> list[str]:
        return [
            sys.executable, "-P", "-m", "infra.cli", "ablate", "--recipe", "tiny", "--set", f"schedule.steps={steps}",
            "--set", f"evaluation.suite={self.suite}", "--set", "evaluation.seeds_per_item=2", "--arms", "base,self-play",
            "--seeds", "1", "--dir", str(self.home / "work"), "--results", str(self.results), *more,
        ]  # fmt: skip

    def call(self, *more: str, steps: int = STEPS) -> subprocess.CompletedProcess[str]:
        command = self.command(*more, steps=steps)
        return subprocess.run(
            command, env=environment(self.home), capture_output=True, text=True, timeout=600, check=False, cwd=self.home
        )


def small_suite(home: Path) -> Path:
    """Some of the suite nano's environments."""
    suite, items = home / "small.jsonl", load_suite("nano")
    suite.write_bytes(suite_lines(items[:: len(items) // ITEMS][:ITEMS]))
    return suite


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, tiny_run: TinyRun) -> Bench:
    home = tmp_path_factory.mktemp("ablation")
    suite = small_suite(home)
    runs = home / "work" / "runs"
    runs.mkdir(parents=True)
    (runs / "self-play-s7").symlink_to(tiny_run.folder, target_is_directory=True)
    return Bench(home, suite)


@pytest.fixture(scope="module")
def first(bench: Bench) -> subprocess.CompletedProcess[str]:
    return bench.call()


def test_a_finished_run_becomes_a_result_with_table_and_picture(
    bench: Bench, first: subprocess.CompletedProcess[str], tiny_run: TinyRun
) -> None:
    assert first.returncode == 0, first.stdout + first.stderr
    base, own = read_results(bench.results)
    assert (base.arm, own.arm, own.seed, own.run_id) == ("base", "self-play", 7, read_notes(tiny_run.folder).run_id)
    assert (own.steps, own.planned_episodes) == (STEPS, STEPS * 8 * 4)
    assert 0 < own.trained_episodes <= own.planned_episodes
    assert own.trained_designs > 0
    assert own.sampled_tokens > own.trained_episodes
    assert own.trained_tokens > 0
    assert [one.generation for one in own.generations] == list(range(STEPS))
    assert all(0 < one.valid <= one.proposed for one in own.generations)
    assert all(0 < one.kinds <= 1 and one.sizes for one in own.generations)
    assert [one.salt for one in own.evaluations] == ["choice", "report"]
    assert [one.instances for one in own.evaluations] == [2 * ITEMS, 2 * ITEMS]
    assert set(own.against_base) == set(own.seen) == {str(bench.suite)}
    assert [one.step for one in own.curve] == [2, 4, STEPS + 1]
    assert (base.evaluations[1].suite_digest, base.evaluations[1].instances) == (
        own.evaluations[1].suite_digest,
        own.evaluations[1].instances,
    )
    assert [(point.step, point.plays) for point in own.frontier] == [(0, 32), (2, 32), (4, 32), (STEPS + 1, 32)]
    for point in own.frontier:
        assert len(point.wins) == sum(one.valid for one in own.generations if one.generation in point.generations)
        assert all(0 <= won <= 32 for won in point.wins)
    played = {one.generation: one.win_rate for one in own.generations}
    for point in own.frontier:  # much the same policies on the same designs, on other seeds
        of_their_time = sum(played[generation] for generation in point.generations) / len(point.generations)
        assert abs(point.win_rate - of_their_time) < 0.25
    assert own.code_digest
    assert "| self-play: self-play, mended (the default) | 1 |" in (bench.results / "table.md").read_text()
    assert (bench.results / "curves.png").stat().st_size > 10_000


def test_what_stands_is_not_done_again_and_a_changed_recipe_is_refused(
    bench: Bench, first: subprocess.CompletedProcess[str]
) -> None:
    assert first.returncode == 0
    before = {file.name: (file.stat().st_mtime_ns, file.stat().st_ino) for file in bench.results.glob("*.json")}
    again = bench.call()
    assert again.returncode == 0, again.stderr
    assert "1 results stand" in again.stdout
    assert "0 runs are left" in again.stdout
    assert {file.name: (file.stat().st_mtime_ns, file.stat().st_ino) for file in bench.results.glob("*.json")} == before
    refused = bench.call(steps=STEPS + 1)
    assert refused.returncode == 2
    assert f"schedule.steps was {STEPS} and is {STEPS + 1}" in refused.stderr


def test_a_run_of_another_recipe_is_never_taken_for_the_arms_own(bench: Bench, tiny_run: TinyRun) -> None:
    home = bench.home / "other"
    (home / "work" / "runs").mkdir(parents=True)
    (home / "work" / "runs" / "self-play-s7").symlink_to(tiny_run.folder, target_is_directory=True)
    refused = Bench(home, bench.suite).call("--set", "rollout.audit_share=0.2")
    assert refused.returncode == 2, refused.stdout
    assert "was begun with another recipe (rollout.audit_share was 0.1 and is 0.2)" in refused.stderr
    assert not (home / "results").exists()


def test_ctrl_c_ends_the_children_and_writes_nothing_half(tmp_path: Path) -> None:
    home = tmp_path
    process = subprocess.Popen(
        Bench(home, small_suite(home)).command(),
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=home,
    )
    try:
        end = time.monotonic() + 120
        while not children_of(home) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert children_of(home)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.communicate()
    assert children_of(home) == []
    assert not (home / "results").exists()


def children_of(home: Path) -> list[str]:
    """Command lines of living children that play for the ablation in `home`."""
    theirs = str(home / "work" / "evaluations")
    return [line for line in command_lines().values() if theirs in line]


def test_a_model_folders_evaluation_becomes_one_row_however_often(store: LocalStore) -> None:
    items = load_suite("nano")
    made = make_evaluation(items, bytes(len(items)), model="m", model_digest="of-this-test", suite="nano", salt="s")
    for _ in range(2):
        remember(store.dsn, made)
    with closing(connect(store.dsn)) as client:
        rows = client.query("SELECT * FROM evaluations FINAL WHERE policy_digest = 'of-this-test'")
    assert [(row["run_id"], row["suite"], row["items"], row["won"], row["sampling"]) for row in rows] == [
        ("model", "nano", len(items), 0, "sampled, s")
    ]


def test_the_model_and_the_author_write_pools_that_repeat_and_that_the_gate_admits(tmp_path: Path) -> None:
    recipe = read_recipe("tiny")
    made = {}
    for maker, count in (("designer", 1), ("designer", 3), ("wide", 1), ("author", 2)):
        folder = tmp_path / f"{maker}-{count}"
        assert make_pool(recipe, PoolOrder(maker, count, 0, folder), lambda _: None) == count  # type: ignore[arg-type]  # literals
        made[maker, count] = [(one.text, one.hint, one.skill) for one in load_pool(folder)]
    assert made["designer", 3][:1] == made["designer", 1]
    assert len(set(made["designer", 3])) == 3
    with pytest.raises(SettingsError, match="holds a pool already"):
        make_pool(recipe, PoolOrder("author", 2, 0, tmp_path / "author-2"), lambda _: None)


def test_a_runs_figures_are_those_of_its_records(store: LocalStore, run_id: str) -> None:
    made = GeneratedRun(run_id, 3, finished=True)
    with closing(connect(store.dsn)) as client:
        with pytest.raises(SettingsError, match="does not hold the end of run"):
            collect(client, run_id)
        made.fill(client)
        found, shown = collect(client, run_id), read_openings(client, run_id)
    steps = [record for _, record in made.pairs if isinstance(record, StepFinished)]
    closings = [record for _, record in made.pairs if isinstance(record, GenerationClosed)]
    plays = [record for _, record in made.pairs if isinstance(record, RolloutFinished)]
    assert found.steps == len(steps) == 3
    assert found.trained_episodes == sum(one.roles["agent"].samples for one in steps)
    assert found.trained_designs == sum(one.roles["designer"].samples for one in steps if "designer" in one.roles)
    assert found.trained_tokens == sum(role.tokens for one in steps for role in one.roles.values())
    assert found.sampled_tokens > 0
    for own, closing_ in zip(found.generations, closings, strict=True):
        valid = [one for one in closing_.designs if one.valid]
        assert (own.generation, own.valid, own.proposed) == (closing_.generation, closing_.valid, closing_.proposed)
        assert own.win_rate == pytest.approx(closing_.win_rate, abs=1e-4)
        assert own.vendi == pytest.approx(closing_.vendi, abs=1e-4)
        assert own.frontier == pytest.approx(sum(0.4 <= one.win_rate <= 0.6 for one in valid) / len(valid), abs=1e-4)
        assert own.helped == pytest.approx(sum(one.regret > 0.6 * one.regret_se for one in valid) / len(valid), abs=1e-4)
    assert shown == {digest(one.turns[0].observation) for one in plays if one.turns} - {""}
