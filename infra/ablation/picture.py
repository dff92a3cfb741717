"""The learning curves of an ablation and its diversity over time, as one PNG. In: results. Out: a file. Needs no display.

Where the frontier was measured, a further row shows it beside the designs' sizes; where an arm without corpus or with the
collapse control is among them, one more shows diversity with and without either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra.ablation.arms import ARMS, BASE, CORPUS_ARMS, SELF_PLAY
from infra.ablation.frontier import HIGH, LOW, PLAYS
from infra.ablation.results import ArmResult, GenerationResult
from infra.ablation.table import CHOICE
from infra.report.alarms import DIVERSITY_KEPT
from schemas.settings import CollapseSettings

WINDOW = CollapseSettings().window
"""Generations of a running mean, as many as the control judges together."""


def draw(results: Sequence[ArmResult], path: Path) -> None:
    """Draws win rate on the choosing instances by step, Vendi/n, repeats and regret by generation; a line an arm, the mean over
    its seeds, with each seed's curve thin behind it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_arm: dict[str, list[ArmResult]] = defaultdict(list)
    for result in results:
        by_arm[result.arm].append(result)
    base = by_arm[BASE][0].evaluations[0] if by_arm.get(BASE) else None
    start = base.win_rate if base is not None and base.salt == CHOICE else None
    compared = [name for name in CORPUS_ARMS if name in by_arm]
    measured = any(result.frontier for result in results)
    rows = 2 + measured + bool(set(compared) - {SELF_PLAY})
    figure, axes = pyplot.subplots(rows, 2, figsize=(14, 4.5 * rows), layout="constrained")
    try:
        named = [arm.name for arm in ARMS if arm.name in by_arm and arm.name != BASE]
        for number, name in enumerate(named):
            color = "black" if name == SELF_PLAY else _shade(number)
            _curve(axes[0][0], name, [_points(result, start) for result in by_arm[name]], color)
            for axis, what in ((axes[0][1], _vendi), (axes[1][0], _repeats), (axes[1][1], _regret)):
                _curve(axis, name, [_series(result, what) for result in by_arm[name]], color)
        if start is not None:
            axes[0][0].axhline(start, color="grey", lw=0.8, ls="--", label="base")
        _frame(axes[0][0], "Held-out instances won (the set that choices are made on)", "optimizer step", legend=True)
        _frame(axes[0][1], "Diversity: Vendi/n", "generation")
        _frame(axes[1][0], "Share of designs that repeat an earlier one", "generation")
        _frame(axes[1][1], "Regret: return with hint minus without", "generation")
        if measured:
            _movement(axes[2], {name: by_arm[name] for name in named})
        if set(compared) - {SELF_PLAY}:
            _compare(axes[-1], {name: by_arm[name] for name in compared})
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def _movement(axes: Any, by_arm: dict[str, list[ArmResult]]) -> None:
    """Where the designs move: the share at the frontier by many plays, and their size as a share of the first generations'."""
    for number, (name, results) in enumerate(by_arm.items()):
        color = "black" if name == SELF_PLAY else _shade(number)
        _curve(axes[0], name, [[(float(one.step), one.share) for one in result.frontier] for result in results], color)
        _curve(axes[1], name, [_sizes(result) for result in results], color)
    _frame(axes[0], f"Designs at the frontier: won in [{LOW}, {HIGH}] of {PLAYS} plays", "optimizer step")
    _frame(axes[1], f"Size of designs (running mean over {WINDOW} generations, share of the first)", "generation")


def _sizes(result: ArmResult) -> list[tuple[float, float]]:
    """The mean over families of a generation's size in shares of the family's first `WINDOW` generations, as a running mean."""
    first: dict[str, list[float]] = defaultdict(list)
    shares: list[tuple[float, float]] = []
    for one in result.generations:
        for family, size in one.sizes.items():
            if len(first[family]) < WINDOW:
                first[family].append(size)
    starts = {family: sum(own) / len(own) for family, own in first.items()}
    for one in result.generations:
        known = [size / starts[family] for family, size in one.sizes.items() if starts[family]]
        if known:
            shares.append((float(one.generation), sum(known) / len(known)))
    return _windows(shares)


def _compare(axes: Any, by_arm: dict[str, list[ArmResult]]) -> None:
    """Vendi/n and kinds of these arms as running means, in shares of their first window; dots: the control was reacting."""
    for number, (name, results) in enumerate(by_arm.items()):
        color = "black" if name == SELF_PLAY else _shade(2 * number)
        for axis, what in ((axes[0], _vendi), (axes[1], _kinds)):
            _curve(axis, name, [_running(result, what) for result in results], color)
            for result in results:
                dots = [(x, y) for x, y in _running(result, what) if any(one.reacted for one in _at(result, x))]
                axis.plot([x for x, _ in dots], [y for _, y in dots], color=color, lw=0, marker="o", ms=7, alpha=0.5)
    axes[0].axhline(DIVERSITY_KEPT, color="grey", lw=0.8, ls="--")
    told = f"running mean over {WINDOW} generations, share of the first; large dots: control reacting"
    _frame(axes[0], f"Vendi/n ({told})", "generation", legend=True)
    _frame(axes[1], f"Kinds: distinct families and sizes ({told})", "generation")


def _running(result: ArmResult, what: Callable[[GenerationResult], float]) -> list[tuple[float, float]]:
    """The mean over each window, at its last generation, as a share of the first window's."""
    means = _windows(_series(result, what))
    return [(across, up / means[0][1]) for across, up in means if means[0][1]]


def _windows(series: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The mean over each `WINDOW` values in a row, at the last of them."""
    ends = range(WINDOW, len(series) + 1)
    return [(series[end - 1][0], sum(up for _, up in series[end - WINDOW : end]) / WINDOW) for end in ends]


def _at(result: ArmResult, generation: float) -> list[GenerationResult]:
    return [one for one in result.generations if one.generation == generation]


def _points(result: ArmResult, start: float | None) -> list[tuple[float, float]]:
    begun = [] if start is None else [(0.0, start)]
    return [*begun, *((float(point.step), point.win_rate) for point in result.curve)]


def _series(result: ArmResult, what: Callable[[GenerationResult], float]) -> list[tuple[float, float]]:
    return [(float(one.generation), what(one)) for one in result.generations if one.valid]


def _vendi(one: GenerationResult) -> float:
    return one.vendi


def _kinds(one: GenerationResult) -> float:
    return one.kinds


def _repeats(one: GenerationResult) -> float:
    return one.repeats


def _regret(one: GenerationResult) -> float:
    return one.regret


def _curve(axis: Any, name: str, seeds: Sequence[Sequence[tuple[float, float]]], color: Any) -> None:
    """The mean over the seeds where all have a value, and each seed alone."""
    at: dict[float, list[float]] = defaultdict(list)
    for points in seeds:
        for across, up in points:
            at[across].append(up)
        if len(seeds) > 1:
            axis.plot([x for x, _ in points], [y for _, y in points], color=color, lw=0.5, alpha=0.35)
    common = sorted(across for across, ups in at.items() if len(ups) == len(seeds))
    axis.plot(common, [sum(at[x]) / len(at[x]) for x in common], color=color, lw=1.6, marker=".", ms=4, label=name)


def _shade(number: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab20"](number % 20)


def _frame(axis: Any, title: str, across: str, *, legend: bool = False) -> None:
    axis.set_title(title, fontsize=11)
    axis.set_xlabel(across)
    axis.grid(alpha=0.25)
    if legend and axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, ncols=2)
