"""The curves of a run as one PNG. In: the report's facts. Out: a file. Uses matplotlib without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.plaintext import escape_line
from infra.report.alarms import ESS_FLOOR
from infra.report.facts import RunFacts

PLAIN, HINT, DESIGNER, BAD = "#2458a6", "#d9822b", "#2e8b57", "#b0413e"


def draw(facts: RunFacts, path: Path) -> None:
    """Draws six panels into `path`; panels without data stay empty."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(14, 7.2), layout="constrained")
    try:
        _wins(axes[0][0], facts)
        _regret(axes[0][1], facts)
        _designs(axes[0][2], facts)
        _reward(axes[1][0], facts)
        _loss(axes[1][1], facts)
        _staleness(axes[1][2], facts)
        title = f"Self-play run {escape_line(facts.run_id)}: {len(facts.generations)} generations, {len(facts.steps)} steps"
        figure.suptitle(title, parse_math=False)
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def _frame(axis: Any, title: str, across: str, *, legend: bool = True, columns: int = 1) -> None:
    axis.set_title(title, fontsize=11)
    axis.set_xlabel(across)
    axis.grid(alpha=0.25)
    axis.xaxis.get_major_locator().set_params(integer=True)
    if legend and axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, ncols=columns, loc="best" if columns == 1 else "upper center")


def _played(facts: RunFacts) -> tuple[list[int], list[Any]]:
    rows = [row for row in facts.generations if row.valid]
    return [row.generation for row in rows], rows


def _wins(axis: Any, facts: RunFacts) -> None:
    across, rows = _played(facts)
    axis.plot(across, [row.win_rate for row in rows], color=PLAIN, marker="o", ms=3, label="without hint")
    axis.plot(across, [row.hint_win_rate for row in rows], color=HINT, marker="o", ms=3, label="with hint")
    axis.axhspan(0.4, 0.6, color="grey", alpha=0.12, label="where the designer is paid most")
    axis.set_ylim(0, 1)
    _frame(axis, "Share of plays won", "generation")


def _regret(axis: Any, facts: RunFacts) -> None:
    across, rows = _played(facts)
    means, errors = [row.regret for row in rows], [row.regret_se for row in rows]
    axis.errorbar(across, means, yerr=errors, color=DESIGNER, marker="o", ms=3, capsize=2, lw=1)
    axis.axhline(0, color="grey", lw=0.8)
    _frame(axis, "Regret: return with hint minus without (± SE)", "generation", legend=False)


def _designs(axis: Any, facts: RunFacts) -> None:
    across = [row.generation for row in facts.generations]
    bottom = [float(row.valid) for row in facts.generations]
    axis.bar(across, bottom, color=DESIGNER, label="valid")
    rules = sorted({rule for row in facts.generations for rule in row.rejected})
    for number, rule in enumerate(rules):
        heights = [row.rejected.get(rule, 0) for row in facts.generations]
        axis.bar(across, heights, bottom=bottom, label=f"refused: {_plain(rule)}", color=_shade(number))
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axis.set_ylim(0, (1.25 + 0.1 * ((len(rules) + 2) // 2)) * max(bottom, default=1.0))  # room for the legend above the bars
    _frame(axis, "Designs by the gate's verdict", "generation", columns=2)


def _shade(number: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab10"]((1, 3, 4, 5, 6, 7, 8, 9, 0)[number % 9])


def _reward(axis: Any, facts: RunFacts) -> None:
    across, rows = _played(facts)
    axis.plot(across, [row.designer_reward for row in rows], color=DESIGNER, marker="o", ms=3)
    axis.set_ylim(0, 1)
    _frame(axis, "Designer reward", "generation", legend=False)


def _by_role(facts: RunFacts, role: str, field: str) -> tuple[list[int], Sequence[float]]:
    rows = [step for step in facts.steps if role in step.roles and step.roles[role].samples]
    return [step.step for step in rows], [float(getattr(step.roles[role], field)) for step in rows]


def _loss(axis: Any, facts: RunFacts) -> None:
    for role, color in (("agent", PLAIN), ("designer", DESIGNER)):
        axis.plot(*_by_role(facts, role, "loss"), color=color, marker=".", ms=4, lw=1, label=role)
    axis.axhline(0, color="grey", lw=0.8)
    _frame(axis, "Policy-gradient loss by role", "step")


def _staleness(axis: Any, facts: RunFacts) -> None:
    for role, color in (("agent", PLAIN), ("designer", DESIGNER)):
        axis.plot(*_by_role(facts, role, "ess"), color=color, marker=".", ms=4, lw=1, label=f"{role}: effective samples")
    axis.axhline(ESS_FLOOR, color=BAD, lw=0.8, ls="--", label="alarm")
    axis.set_ylim(0, 1.05)
    _frame(axis, "Effective sample size after the staleness correction", "step")


def _plain(text: str) -> str:
    """Text that is drawn as it is: nothing invisible, no formula."""
    return escape_line(text, 60).replace("$", r"\$")
