"""Pools that are made once: what the author writes, what is admitted, what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import msgspec
import pytest

from infra.ablation.arms import Pool
from infra.cli.ablating import Order
from infra.cli.ablationpools import make_pools, pools_place
from infra.cli.app import run_app
from infra.cli.options import read_recipe
from infra.cli.poolmaking import PROGRAMS_A_LEVEL, PoolOrder, admit, by_author, by_levels, draw_lines, write_pool
from infra.corpus.pool import PoolLine, load_pool, recipe_documents
from infra.dialects.nano import MEMORY_LINES, describe_source, memory_labels
from schemas.errors import SettingsError
from trainer.nano.families import FAMILIES
from workers.gate import Verdict

NANO = read_recipe("nano")


def verdict(line: PoolLine) -> Verdict:
    """Admits what does not say otherwise."""
    refused = "refuse" in line.source
    return Verdict(
        admitted=not refused, rule="seed" if refused else "", evidence="", proof=(), play_source="", source_digest="",
        play_digest="", signature=(), witness_min_return=1.0, witness_mean_return=1.0, reward_min=0.0, cpu_s=0.0, wall_s=0.0,
    )  # fmt: skip


def an_order(count: int) -> PoolOrder:
    return PoolOrder("author", count, 0, Path("unused"))


def test_the_author_repeats_by_seed_and_a_smaller_pool_begins_a_larger_one() -> None:
    first = list(itertools.islice(by_author(NANO, 0), 40))
    assert list(itertools.islice(by_author(NANO, 0), 60))[:40] == first
    assert list(itertools.islice(by_author(NANO, 1), 40)) != first
    assert {line.skill for line in first} == set(NANO.skills)
    assert all(line.hint in FAMILIES[describe_source(line.source)[0]].hints for line in first)
    labels = [describe_source(line.source) for line in first]
    assert max(size - FAMILIES[name].easy[1] for name, size in labels) >= 4  # it writes beyond the easiest sizes


def test_made_up_memory_lines_are_of_all_kinds_and_sizes_and_repeat() -> None:
    drawn = [draw_lines(Random(number)) for number in range(200)]
    assert max(map(len, drawn)) <= MEMORY_LINES
    labels = [label for lines in drawn for label in memory_labels(lines)]
    assert len(labels) == sum(map(len, drawn))
    assert {kind for kind, _, _ in labels} == {"best", "easy", "hard"}
    assert {family for _, family, _ in labels} == set(FAMILIES)
    assert max(size for _, family, size in labels if family == "chain") == FAMILIES["chain"].sizes[1]
    assert draw_lines(Random(3)) == draw_lines(Random(3))


def test_levels_go_through_every_size_of_every_family_of_the_recipes_skills() -> None:
    lines = list(by_levels(read_recipe("nano", ['skills=["Logical Deduction"]']), 0))
    assert {line.family for line in lines} == {"follow", "logic", "guess"}
    low, high = FAMILIES["follow"].sizes
    sizes = {line.level: describe_source(line.source)[1] for line in lines if line.family == "follow"}
    assert sizes == dict(enumerate(range(low, high + 1)))
    assert [line.level for line in lines].count(0) == 3 * PROGRAMS_A_LEVEL
    assert lines == list(by_levels(read_recipe("nano", ['skills=["Logical Deduction"]']), 0))


def test_admitted_environments_are_kept_once_in_their_order_up_to_the_count() -> None:
    written = [PoolLine(source=name) for name in ("a", "refuse", "a", "b", "c", "d")]
    kept = admit(iter(written), verdict, an_order(3), 10, lambda _: None)
    assert [(line.id, line.source) for line in kept] == [("author-00000", "a"), ("author-00001", "b"), ("author-00002", "c")]
    assert [line.source for line in admit(written, verdict, an_order(0), 10, lambda _: None)] == ["a", "b", "c", "d"]


def test_a_maker_that_only_repeats_or_is_only_refused_is_given_up() -> None:
    with pytest.raises(SettingsError, match=r"10 designs in a row .* after 1 admitted"):
        admit(itertools.repeat(PoolLine(source="a")), verdict, an_order(3), 10, lambda _: None)
    with pytest.raises(SettingsError, match=r"10 designs in a row .* after 0 admitted"):
        admit(itertools.repeat(PoolLine(source="refuse")), verdict, an_order(3), 10, lambda _: None)
    with pytest.raises(SettingsError, match=r"10 designs in a row can't be read.* after 0 admitted"):
        admit(itertools.repeat(None), verdict, an_order(3), 10, lambda _: None)


def test_an_author_of_none_of_the_skills_says_so() -> None:
    with pytest.raises(SettingsError, match="no family for Poetry"):
        next(by_author(NANO.model_copy(update={"skills": ("Poetry",)}), 0))


def test_a_pool_reads_back_as_fixed_and_as_procedural(tmp_path: Path) -> None:
    lines = list(itertools.islice(by_levels(NANO, 0), 3))
    write_pool(tmp_path, [msgspec.structs.replace(line, id=f"x{number}") for number, line in enumerate(lines)])
    recipe = read_recipe("ablation", ["pool=procedural", "design.per_document=1", "design.attempts=1"])
    assert [(one.family, one.level) for one in recipe_documents(recipe, tmp_path)] == [("chain", 0)] * 3
    assert [one.text for one in load_pool(tmp_path)] == [line.source for line in lines]


def test_a_smaller_pool_is_cut_from_the_largest_which_alone_is_made(tmp_path: Path) -> None:
    base = read_recipe("ablation")
    lines = [PoolLine(id=f"designer-{number:05d}", source=f"s{number}") for number in range(256)]
    places = pools_place(tmp_path, base)
    write_pool(places / "designer-256", lines)
    order = Order("ablation", (), (), 1, tmp_path, tmp_path / "results", 60.0)
    small, large = Pool("designer", 64), Pool("designer", 256)
    digests = make_pools(base, [small, large], order, lambda line: pytest.fail(line))
    assert [one.text for one in load_pool(places / "designer-64")] == [line.source for line in lines[:64]]
    assert digests[small] != digests[large]
    assert pools_place(tmp_path, read_recipe("ablation", ["design.sampling.temperature=0.5"])) != places


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--by", "me", "--size", "3"], "--by 'me' is not known"),
        (["--by", "author"], "--by author needs --size"),
        (["--by", "author", "--size", "3", "--recipe", "qwen3-4b-games"], "writes the nano model's families"),
    ],
)
def test_orders_that_cannot_be_are_one_line(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["pool", "make", "--to", str(tmp_path / "pool"), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "pool").exists()
