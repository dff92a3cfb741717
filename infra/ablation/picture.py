"""The learning curves of an ablation and its diversity over time, as one PNG. In: results. Out: a file. Needs no display."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra.ablation.arms import ARMS, BASE, SELF_PLAY
from infra.ablation.results import ArmResult, GenerationResult
from infra.ablation.table import CHOICE


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
    figure, axes = pyplot.subplots(2, 2, figsize=(14, 9), layout="constrained")
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
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def _points(result: ArmResult, start: float | None) -> list[tuple[float, float]]:
    begun = [] if start is None else [(0.0, start)]
    return [*begun, *((float(point.step), point.win_rate) for point in result.curve)]


def _series(result: ArmResult, what: Callable[[GenerationResult], float]) -> list[tuple[float, float]]:
    return [(float(one.generation), what(one)) for one in result.generations if one.valid]


def _vendi(one: GenerationResult) -> float:
    return one.vendi


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
