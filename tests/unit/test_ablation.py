"""The ablation without its runs: arms as changes of one recipe, equal budgets, results that stand, and the table made of them."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from infra.ablation.arms import ARMS, BASE, QUICK, SELF_PLAY, Pool, find_arm, overrides_of
from infra.ablation.budget import plan_budget, require_equal
from infra.ablation.collect import busy_ms
from infra.ablation.difference import crossed_interval
from infra.ablation.frontier import FrontierPoint
from infra.ablation.markdown import markdown
from infra.ablation.picture import draw
from infra.ablation.results import (
    ArmResult,
    CurvePoint,
    GenerationResult,
    changes,
    deciding_keys,
    digest_of,
    read_result,
    read_results,
    stands,
    write_result,
)
from infra.ablation.table import make_table
from infra.cli.ablating import Order, commit, kept_policies, plan_work
from infra.cli.ablationmodels import NANO_REPORT, QUICK_REPORT
from infra.cli.app import run_app
from infra.cli.children import AblationError
from infra.cli.options import read_recipe
from infra.evaluations import ModelEvaluation, make_evaluation, pack_bits
from infra.report.interval import paired_difference
from infra.suites import load_suite
from infra.suites.reasoninggym import INSTALL, _drawn, make_item
from schemas.errors import SettingsError

ITEMS = load_suite("nano")
SEEDS = 2
EVERY = NANO_REPORT["nano"] * len(ITEMS)


@pytest.fixture(autouse=True)
def gym(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suite reasoning-gym without its package, which need not be here: the whole table is planned with it."""
    items = [make_item("arithmetic", "plus", [(f"What is {number} + 1?", str(number + 1)) for number in range(60)])]
    monkeypatch.setattr("infra.suites.load_reasoning_gym", lambda: items)


def an_order(folder: Path, *arms: str, pairs: tuple[str, ...] = (), seeds: int = 1) -> Order:
    return Order("ablation", pairs, arms, seeds, folder / "work", folder / "results", 60.0)


def test_every_arm_is_the_base_recipe_under_its_own_changes_at_equal_budget(tmp_path: Path) -> None:
    work = plan_work(an_order(tmp_path, *(arm.name for arm in ARMS)))
    recipes = {job.arm.name: job.recipe for job in work.jobs}
    assert set(recipes) == {arm.name for arm in ARMS} - {BASE}
    assert require_equal(recipes) == plan_budget(work.base)
    assert work.budget.episodes == 120 * 32 * 16
    assert recipes[SELF_PLAY].model_dump(exclude={"name"}) == work.base.model_dump(exclude={"name"})
    assert (recipes["fixed-64"].pool, recipes["fixed-64"].designer, recipes["fixed-64"].memory.enabled) == (
        "fixed",
        "frozen",
        False,
    )
    assert recipes["fixed-all"].corpus.path.endswith("designer-3840")
    assert (recipes["procedural"].pool, recipes["procedural"].levels.rule) == ("procedural", "accuracy")
    assert (recipes["author-live"].levels.rule, recipes["author-live"].memory.enabled) == ("memory", True)
    assert (recipes["published"].algorithm, recipes["published"].rollout.paired) == ("published", False)
    assert not recipes["no-memory"].memory.enabled
    assert not recipes["no-corpus"].corpus.enabled
    held = {name for name, recipe in recipes.items() if recipe.collapse.enabled}
    assert held == {"no-corpus-blocked", "no-corpus-control", "collapse-control"}
    assert [recipes[name].reads_corpus for name in ("no-corpus", "no-corpus-blocked", "no-corpus-control")] == [
        False,
        False,
        True,
    ]
    assert (recipes["frozen"].designer, recipes["frozen"].memory.enabled) == ("frozen", True)
    assert (recipes["frozen-no-memory"].designer, recipes["frozen-no-memory"].memory.enabled) == ("frozen", False)
    signals = [recipes[name].design.signal for name in ("learning-potential", "variance", "solve-rate")]
    assert signals == ["learning-potential", "variance", "solve-rate"]
    assert len(recipes["two-skills"].skills) == recipes["two-skills"].design.skills_active == 2


def test_quick_answers_the_main_question() -> None:
    assert QUICK[0] == BASE
    assert SELF_PLAY in QUICK
    assert sum(find_arm(name).fixed for name in QUICK) >= 2


def test_an_unknown_arm_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["ablate", "--arms", "selfplay", "--plan"]) == 2
    assert "there is no arm 'selfplay'. Name some of: base, fixed-64" in capsys.readouterr().err


def test_the_plan_is_told_without_anything_being_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--dir", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    assert run_app(["ablate", "--quick", "--plan", *folders]) == 0
    told = capsys.readouterr().out
    assert "every arm trains 15360 episodes (plain and hint) in 30 optimizer steps" in told
    assert "self-play-s1: self-play, mended (the default)" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ("rollout.plain_plays=9", r"agent episodes trained 61440 in a, 65280 in b"),
        ("schedule.steps=100", r"agent episodes trained 61440 in a, 51200 in b"),
        ("rollout.train_hint_arm=false", r"budgets differ"),
        ("train.learning_rate=1e-3", r"learning rate 0.0002 in a, 0.001 in b"),
        ("max_minutes=5", r"arm b may be ended by time"),
    ],
)
def test_unequal_budgets_are_refused_with_the_first_difference(over: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        require_equal({"a": read_recipe("ablation"), "b": read_recipe("ablation", [over])})


def test_one_pool_size_is_as_many_as_self_play_designs() -> None:
    base = read_recipe("ablation", ["schedule.steps=40"])
    assert Pool("designer").count(base) == 40 * 32
    assert Pool("designer", 64).count(base) == 64


def test_overrides_name_the_pools_folder_and_the_seed(tmp_path: Path) -> None:
    own = overrides_of(find_arm("fixed-64"), read_recipe("ablation"), 7, tmp_path)
    assert (own["seed"], own["corpus.path"]) == (7, str(tmp_path / "designer-64"))


def a_result(arm: str, seed: int, rate: float = 0.5, **over: Any) -> ArmResult:
    rng = random.Random(f"{arm}/{seed}")
    won = bytes(rng.random() < rate for _ in range(SEEDS * len(ITEMS)))
    generations = [
        GenerationResult(
            generation=number, valid=8, proposed=9, win_rate=0.4, hint_win_rate=0.6, regret=0.2, regret_se=0.05,
            vendi=0.9 - 0.01 * number, repeats=0.1, frontier=0.02 * number, kinds=0.5, helped=0.3,
            sizes={"chain": 2.0 if number < 6 else 3.0},
        )
        for number in range(12)
    ]  # fmt: skip
    values: dict[str, Any] = {
        "arm": arm,
        "seed": seed,
        "recipe_digest": "r",
        "recipe": {"x": 1},
        "base_recipe": "ablation",
        "commit": "c" * 40,
        "code_digest": "k",
        "steps": 0 if arm == BASE else 12,
        "planned_episodes": 0 if arm == BASE else 1000,
        "trained_episodes": 0 if arm == BASE else 995,
        "sampled_tokens": 0 if arm == BASE else 2_000_000,
        "evaluations": [
            make_evaluation(ITEMS, won[: len(ITEMS)], model="m", model_digest="d", suite="nano", salt="choice"),
            make_evaluation(ITEMS, won, model="m", model_digest="d", suite="nano", salt="report"),
        ],
        "curve": [] if arm == BASE else [CurvePoint(step=6, win_rate=0.4), CurvePoint(step=12, win_rate=rate)],
        "generations": [] if arm == BASE else generations,
    }
    return ArmResult(**{**values, **over})


def test_a_result_stands_until_its_recipe_changes_and_the_change_is_told(tmp_path: Path) -> None:
    base = read_recipe("ablation")
    arm = find_arm(SELF_PLAY)
    deciding = deciding_keys(arm, base, base)
    assert stands(tmp_path, arm.name, 0, deciding) is None
    made = a_result(arm.name, 0, recipe=deciding, recipe_digest=digest_of(deciding))
    assert read_result(write_result(tmp_path, made)) == made
    assert stands(tmp_path, arm.name, 0, deciding) == made
    assert stands(tmp_path, arm.name, 1, deciding) is None
    other = deciding_keys(arm, read_recipe("ablation", ["train.learning_rate=3e-4"]), base)
    with pytest.raises(SettingsError, match=r"train\.learning_rate was 0\.0002 and is 0\.0003.*--results"):
        stands(tmp_path, arm.name, 0, other)


def test_what_decides_no_result_changes_no_digest() -> None:
    base, arm = read_recipe("ablation"), find_arm(SELF_PLAY)
    told = ["processes.restarts=9", "train.keep_every=5", "name=other", "evaluation.seeds_per_item=9"]
    assert digest_of(deciding_keys(arm, base, base)) == digest_of(deciding_keys(arm, read_recipe("ablation", told), base))


def test_a_collapse_control_that_is_off_decides_nothing_and_one_that_is_on_all_that_it_says() -> None:
    base, arm = read_recipe("ablation"), find_arm(SELF_PLAY)
    told = [["collapse.window=9"], ["collapse.enabled=true"], ["collapse.enabled=true", "collapse.window=9"]]
    off, on, other = (deciding_keys(arm, read_recipe("ablation", pairs), base) for pairs in told)
    assert digest_of(off) == digest_of(deciding_keys(arm, base, base))
    assert not [key for key in off if key.startswith("collapse")]
    assert len({digest_of(one) for one in (off, on, other)}) == 3


def test_arms_that_ask_for_no_control_have_none_under_a_base_that_asks_for_it(tmp_path: Path) -> None:
    work = plan_work(an_order(tmp_path, *(arm.name for arm in ARMS), pairs=("collapse.enabled=true",)))
    without = {job.arm.name for job in work.jobs if not job.recipe.collapse.enabled}
    assert without >= {"published", "no-corpus", "procedural", "author-live", "fixed-all"}


def test_a_pool_counts_by_its_making_before_it_is_there() -> None:
    base = read_recipe("ablation")
    keys = [deciding_keys(find_arm(name), base, base) for name in ("fixed-64", "fixed-256", "procedural", "author-live")]
    assert [one["pool.environments"] for one in keys] == [64, 256, 0, 0]
    assert len({digest_of(one) for one in keys[:3]}) == 3


def test_changes_name_few_keys_and_count_the_others() -> None:
    told = changes({str(n): 0 for n in range(7)}, {str(n): 1 for n in range(7)})
    assert told[0] == "0 was 0 and is 1"
    assert told[-1] == "3 more"
    assert changes({"a": (1, 2)}, {"a": [1, 2]}) == []


def test_a_standing_result_is_not_planned_again(tmp_path: Path) -> None:
    order = with_changes(an_order(tmp_path, BASE, SELF_PLAY, seeds=2), quick=True)
    first = plan_work(order)
    assert [job.name for job in first.jobs] == ["self-play-s0", "self-play-s1"]
    job = first.jobs[0]
    own: dict[str, Any] = {"recipe": dict(job.deciding), "recipe_digest": digest_of(job.deciding)}
    write_result(order.results, a_result(SELF_PLAY, 0, evaluations=[reported_nano(QUICK_REPORT["nano"])], **own))
    again = plan_work(order)
    assert [job.name for job in again.jobs] == ["self-play-s1"]
    assert again.standing == 1
    with pytest.raises(SettingsError, match=r"self-play-s0\.json is the result of another recipe .*schedule\.steps was 120"):
        plan_work(with_changes(order, pairs=("schedule.steps=60",)))


def with_changes(order: Order, **over: Any) -> Order:
    return Order(**{**vars(order), **over})


def reported_nano(seeds: int) -> ModelEvaluation:
    return make_evaluation(ITEMS, bytes(seeds * len(ITEMS)), model="m", model_digest="d", suite="nano", salt="report")


def test_a_result_on_other_instances_than_are_due_is_refused_before_anything_starts(tmp_path: Path) -> None:
    order = with_changes(an_order(tmp_path, BASE, SELF_PLAY), quick=True)
    job = plan_work(order).base_job
    own: dict[str, Any] = {"recipe": dict(job.deciding), "recipe_digest": digest_of(job.deciding)}
    write_result(order.results, a_result(BASE, 0, evaluations=[reported_nano(15)], **own))
    with pytest.raises(
        SettingsError,
        match=rf"base-s0 was evaluated on {15 * len(ITEMS)} instances .* of suite nano, and {16 * len(ITEMS)} instances",
    ):
        plan_work(order)
    write_result(order.results, a_result(BASE, 0, evaluations=[reported_nano(20)], **own))
    with pytest.raises(SettingsError, match=r"base-s0 was evaluated on none of suite nano-new, and 2304 instances"):
        plan_work(with_changes(order, quick=False))


def test_the_whole_table_asks_for_the_package_before_anything_starts_and_the_quick_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("infra.suites.reasoninggym.version", lambda _: "0.0.1")
    _drawn.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym", ModuleType("reasoning_gym"))
    with pytest.raises(SettingsError, match=rf"made of version .*, and 0\.0\.1 is installed.*{INSTALL}"):
        plan_work(an_order(tmp_path, BASE))
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(SettingsError, match=rf"which is not installed here.*{INSTALL}"):
        plan_work(an_order(tmp_path, BASE))
    assert plan_work(with_changes(an_order(tmp_path, BASE), quick=True)).jobs == ()


def test_a_suite_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=rf"evaluation\.limit is 50, and an ablation plays all {EVERY} instances of suite nano"
    ):
        plan_work(an_order(tmp_path, BASE, pairs=("evaluation.limit=50",)))
    assert plan_work(an_order(tmp_path, BASE, pairs=(f"evaluation.limit={EVERY}",))).jobs == ()


def test_a_folder_that_holds_no_run_is_refused_before_anything_starts(tmp_path: Path) -> None:
    order = an_order(tmp_path, SELF_PLAY)
    (order.folder / "runs" / "self-play-s0" / "broker").mkdir(parents=True)
    with pytest.raises(SettingsError, match=r"self-play-s0 holds something that is no run .*Remove that folder"):
        plan_work(order)


def test_one_seed_gives_the_clustered_interval_of_the_report() -> None:
    rng = random.Random(5)
    clusters = [f"e{number % 40}" for number in range(400)]
    before, after = (bytes(rng.random() < rate for _ in clusters) for rate in (0.4, 0.5))
    expected = paired_difference(before, after, clusters)
    found = crossed_interval([[float(b - a) for a, b in zip(before, after, strict=True)]], clusters)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))


def test_seeds_that_differ_widen_the_interval_by_their_spread() -> None:
    clusters = [f"e{number}" for number in range(1000)]
    rng = random.Random(2)
    noise = [rng.gauss(0, 0.3) for _ in clusters]
    equal = crossed_interval([noise, noise, noise], clusters)
    apart = crossed_interval([[value + shift for value in noise] for shift in (-0.1, 0.0, 0.1)], clusters)
    assert apart.mean == pytest.approx(equal.mean)
    environments = (equal.half / 1.9623) ** 2
    seeds = 0.1**2 / 3
    assert apart.half == pytest.approx(math.sqrt(environments * 1.9623**2 + seeds * 4.3027**2), rel=1e-3)


@pytest.mark.parametrize(("seeds", "between"), [(2, 0.0), (2, 0.1), (2, 0.4), (4, 0.05), (4, 0.4)])
def test_intervals_hold_the_truth_as_often_as_they_say(seeds: int, between: float) -> None:
    rng = random.Random(11)
    held = 0
    for _ in range(300):
        items = [rng.gauss(0, 0.2) for _ in range(30)]
        shifts = [rng.gauss(0, between) for _ in range(seeds)]
        runs = [[value + shift + rng.gauss(0, 0.4) for value in items] for shift in shifts]
        found = crossed_interval(runs, [str(number) for number in range(30)])
        held += found.low <= 0.0 <= found.high
    assert 0.93 <= held / 300 <= 1.0


def test_values_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="don't fit"):
        crossed_interval([[1.0], [1.0, 0.0]], ["a"])


def test_the_table_pairs_arms_leaves_out_what_was_seen_and_chooses_on_other_instances() -> None:
    seen = [number % 3 == 0 for number in range(SEEDS * len(ITEMS))]
    results = [
        a_result(BASE, 0, 0.25, seen={"nano": pack_bits(seen)}),
        *(a_result("fixed-64", seed, 0.40) for seed in range(2)),
        *(a_result("fixed-256", seed, 0.55) for seed in range(2)),
        *(a_result(SELF_PLAY, seed, 0.70) for seed in range(3)),
    ]
    table = make_table(results)
    assert [row.arm.name for row in table.rows] == [BASE, "fixed-64", "fixed-256", SELF_PLAY]
    assert table.left_out == {"nano": sum(seen)}
    assert table.instances == {"nano": len(seen) - sum(seen)}
    assert table.best_fixed == "fixed-256"
    base, small, _, default = table.rows
    assert base.over_base is None
    assert default.under_default is None
    assert default.over_base is not None
    assert default.over_base.low > 0.3
    assert default.over_base.seeds == 3
    assert small.under_default is not None
    assert (small.under_default.seeds, small.under_default.mean > 0.2) == (2, True)
    assert small.diversity is not None
    assert small.diversity.vendi == pytest.approx((0.88, 0.81))
    assert small.diversity.growth == pytest.approx(1.5)
    text = markdown(table)
    assert "| fixed-256 (best fixed):" in text
    assert (
        "| fixed-64 | 0.88 -> 0.81 | 0.10 -> 0.10 | 0.50 -> 0.50 | 0.04 -> 0.18 | 0.20 -> 0.20 | 0.30 -> 0.30 | x 1.50 |  |"
        in text
    )
    assert "51.4 (-6.9): fixed pool + GRPO" in text
    assert f"{len(seen) - sum(seen)} instances" in text
    assert f"Only {len(seen) - sum(seen)} instances of suite nano were never shown before; 2000 are wanted." in text


def test_an_instance_that_one_arm_saw_is_left_out_for_all() -> None:
    count = SEEDS * len(ITEMS)
    first, second = ([number == place for number in range(count)] for place in (3, 7))
    results = [a_result(BASE, 0, seen={"nano": pack_bits(first)}), a_result(SELF_PLAY, 0, seen={"nano": pack_bits(second)})]
    assert make_table(results).left_out == {"nano": 2}


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ([a_result(SELF_PLAY, 0)], "no result of the base model"),
        (
            [a_result(BASE, 0), a_result(SELF_PLAY, 0), a_result("frozen", 0, steps=24)],
            "self-play-s0 has steps 12, frozen-s0 has 24",
        ),
        ([a_result(BASE, 0), a_result(SELF_PLAY, 0, evaluations=[])], "self-play-s0 has no evaluation on suite nano"),
        ([a_result(BASE, 0, seen={"nano": "f" * (SEEDS * len(ITEMS) // 4)})], "every instance of suite nano was seen before"),
    ],
)
def test_results_that_do_not_fit_together_are_refused(results: list[ArmResult], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        make_table(results)


def test_a_missed_budget_stands_in_the_table() -> None:
    results = [a_result(BASE, 0), a_result(SELF_PLAY, 0, trained_episodes=900), a_result("frozen", 0)]
    table = make_table(results)
    assert [row.short for row in table.rows] == ["", "seed 0: 900 of 1000", ""]
    assert "seed 0: 900 of 1000" in markdown(table)


def test_table_and_picture_are_made_of_the_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for result in (a_result(BASE, 0, 0.3), a_result(SELF_PLAY, 0, 0.6), a_result(SELF_PLAY, 1, 0.6)):
        write_result(tmp_path, result)
    assert len(read_results(tmp_path)) == 3
    assert run_app(["ablate", "--table", "--results", str(tmp_path)]) == 0
    assert "self-play" in capsys.readouterr().out
    assert (tmp_path / "table.md").read_text().startswith("# Ablations")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_curves_of_an_arm_without_seeds_in_common_are_drawn_too(tmp_path: Path) -> None:
    short = a_result("frozen", 1, curve=[CurvePoint(step=6, win_rate=0.4)], generations=[])
    draw([a_result("frozen", 0), short], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_diversity_without_corpus_and_under_the_control_is_drawn_in_a_row_of_its_own(tmp_path: Path) -> None:
    from matplotlib.image import imread

    default = a_result(SELF_PLAY, 0)
    fallen = a_result("no-corpus", 0)
    back = a_result(
        "no-corpus-control",
        0,
        generations=[msgspec.structs.replace(one, reacted=one.generation > 8) for one in fallen.generations],
    )
    heights = []
    for results in ([default], [default, fallen, back]):
        draw(results, tmp_path / "curves.png")
        heights.append(imread(tmp_path / "curves.png").shape[0])
    assert heights[1] == pytest.approx(1.5 * heights[0], abs=2)
    text = markdown(make_table([a_result(BASE, 0), default, fallen, back]))
    assert [line.split("|")[-2].strip() for line in text.splitlines() if "x 1.50" in line] == ["", "", "25%"]


def test_the_frontier_by_many_plays_is_told_and_drawn_in_a_row_of_its_own(tmp_path: Path) -> None:
    from matplotlib.image import imread

    def measured(*counts: int) -> list[FrontierPoint]:
        return [
            FrontierPoint(step=step, generations=[step], plays=32, wins=[16] * count + [1] * (40 - count))
            for step, count in zip((0, 6, 12), counts, strict=True)
        ]

    plain = [a_result(BASE, 0), a_result(SELF_PLAY, 0), a_result("fixed-64", 0)]
    known = [
        plain[0],
        a_result(SELF_PLAY, 0, frontier=measured(4, 12, 20)),
        a_result(SELF_PLAY, 1, frontier=measured(8, 12, 18)),
        a_result("fixed-64", 0, frontier=measured(4, 5, 4)),
        a_result("fixed-256", 0, frontier=measured(4, 4, 4)),
    ]
    assert "Designs at the frontier" not in markdown(make_table(plain))
    table = make_table(known)
    assert table.rows[0].frontier == {}
    default = table.rows[3]
    assert default.frontier == pytest.approx({0: 0.15, 6: 0.3, 12: 0.475})
    assert default.rise is not None
    assert default.rise.mean == pytest.approx((0.4 + 0.25) / 2)
    assert default.rise.seeds == 2
    text = markdown(table)
    assert "| self-play | 0, 6, 12 | 0.15, 0.30, 0.47 | +32.5 [" in text
    assert "| fixed-64 | 0, 6, 12 | 0.10, 0.12, 0.10 | +0.0 [" in text
    assert "| fixed-256 | 0, 6, 12 | 0.10, 0.10, 0.10 |  | 1 |" in text  # no scatter: no interval
    heights = []
    for results in (plain, known):
        draw(results, tmp_path / "curves.png")
        heights.append(imread(tmp_path / "curves.png").shape[0])
    assert heights[1] == pytest.approx(1.5 * heights[0], abs=2)
    assert read_result(write_result(tmp_path, known[1])) == known[1]


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "self-play-s0.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"self-play-s0\.json is no result of an arm"):
        read_results(tmp_path)


def test_kept_policies_are_those_of_the_curve_and_the_last(tmp_path: Path) -> None:
    recipe = read_recipe("ablation", ["train.keep_every=10"])
    for version in (0, 10, 19, 20, 21, 22):
        (tmp_path / "policies" / f"v{version:08d}-{'0' * 16}").mkdir(parents=True)
    assert list(kept_policies(tmp_path, recipe)) == [10, 20, 22]
    (tmp_path / "policies" / f"v{30:08d}-{'0' * 16}").mkdir()
    (tmp_path / "policies" / f"v{31:08d}-{'0' * 16}").mkdir()
    assert list(kept_policies(tmp_path, recipe)) == [10, 20, 31]  # 30 is that before the drain batch
    with pytest.raises(AblationError, match="holds no trained policy"):
        kept_policies(tmp_path / "nothing", recipe)


def test_the_commit_of_this_code_is_told() -> None:
    assert len(commit().removesuffix("-dirty")) in (0, 40)


def test_a_pause_before_a_resume_is_no_time_of_work() -> None:
    steps = [30_000 * number for number in range(20)]
    assert busy_ms([]) == busy_ms([7]) == 0
    assert busy_ms(steps) == 19 * 30_000
    assert busy_ms(steps + [one + 3 * 3_600_000 for one in steps]) == 2 * 19 * 30_000
    assert busy_ms([0, 100_000, 101_000, 102_000]) == 102_000  # a slow start of a short run is work
    assert busy_ms([0, 200_000, 420_000, 600_000]) == 600_000  # and so is a slow step among slow ones
