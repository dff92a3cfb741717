"""The table of an ablation as Markdown, and its cells as words. In: the table. Out: text. Called by `spade ablate`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from infra.ablation.arms import BASE, Arm
from infra.ablation.difference import Crossed
from infra.ablation.frontier import COUNT, HIGH, LOW, PLAYS, Rise
from infra.ablation.table import ENDS, Ablation

PAPER_WHOLE = 58.3


def markdown(table: Ablation, command: str = "spade ablate --table") -> str:
    """The table as a Markdown text, with what each column means."""
    return "\n".join(
        [*_head(table, command), *_wins(table), "", *_costs(table), "", *_movement(table), "", *_frontier(table), ""]
    )


def _head(table: Ablation, command: str) -> Iterator[str]:
    yield "# Ablations"
    yield ""
    yield f"Made by `{command}` from the files beside it; nothing here was written by hand. The arms: infra/ablation/arms.py."
    yield ""
    if table.steps:
        yield (
            f"Equal budget: every trained arm plans {table.episodes} agent episodes, of the same arms, in {table.steps} "
            "optimizer steps."
        )
    for suite in table.suites:
        yield (
            f"Suite {suite}: {table.instances[suite]} instances, the same for every arm; {table.left_out[suite]} more were left "
            "out, because their data was shown in a play of some arm or in the warm start."
        )
    yield (
        "Intervals are 95 %, over seeds and environments at once (infra/ablation/difference.py); of one seed, over environments "
        "only."
    )
    yield f"The best fixed pool, chosen on other instances: {table.best_fixed}." if table.best_fixed else ""
    yield from table.notes
    yield ""


def points(one: Crossed | Rise | None) -> str:
    """A difference in points with its interval; "" where there is none."""
    return "" if one is None else f"{100 * one.mean:+.1f} [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"


def share(one: Crossed) -> str:
    """A win rate in percent with half of its interval."""
    return f"{100 * one.mean:.1f} ± {100 * one.half:.1f}"


def paper(arm: Arm) -> str:
    """The paper's number for the arm, and how far it lies below the whole; "" where it has none."""
    if arm.paper is None:
        return ""
    gap = "" if arm.paper == PAPER_WHOLE else f" ({arm.paper - PAPER_WHOLE:+.1f})"
    return f"{arm.paper}{gap}: {arm.paper_name}"


def _wins(table: Ablation) -> Iterator[str]:
    rates = " | ".join(f"{suite}, won %" for suite in table.suites)
    yield f"| arm | seeds | {rates} | over base | self-play minus this | paper, 30B games |"
    yield f"|---|---|{'---|' * len(table.suites)}---|---|---|"
    for row in table.rows:
        mark = " (best fixed)" if row.arm.name == table.best_fixed else ""
        rates = " | ".join(share(row.suites[suite]) for suite in table.suites)
        yield (
            f"| {row.arm.name}{mark}: {row.arm.told} | {row.seeds} | {rates} | {points(row.over_base)} | "
            f"{points(row.under_default)} | {paper(row.arm)} |"
        )


def _costs(table: Ablation) -> Iterator[str]:
    yield "| arm | episodes trained | tokens sampled | tokens trained | minutes | budget missed |"
    yield "|---|---|---|---|---|---|"
    for row in table.rows:
        if row.arm.name != BASE:
            yield (
                f"| {row.arm.name} | {row.episodes:.0f} | {row.sampled_tokens / 1e6:.2f} M | {row.trained_tokens / 1e6:.2f} M | "
                f"{row.minutes:.1f} | {row.short or 'no'} |"
            )


def _movement(table: Ablation) -> Iterator[str]:
    yield (
        f"First {ENDS} generations -> last {ENDS}. Frontier: share of environments with a win rate in [.4, .6], as few plays "
        "measure it. Hints help: share whose regret lies above 0.6 of its standard errors. Kinds: distinct pairs of family and "
        "size, as a share of the environments. Sizes: last over first, mean over families. Reacted: share of all generations "
        "whose design requests the collapse control changed."
    )
    yield ""
    yield "| arm | Vendi/n | repeats | kinds | frontier | regret | hints help | sizes | reacted |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in table.rows:
        if row.diversity is not None:
            own = row.diversity
            told = [
                f"{start:.2f} -> {end:.2f}"
                for start, end in (own.vendi, own.repeats, own.kinds, own.frontier, own.regret, own.helped)
            ]
            sizes, reacted = f"x {own.growth:.2f}" if own.growth else "", f"{own.reacted:.0%}" if own.reacted else ""
            yield f"| {row.arm.name} | {' | '.join(told)} | {sizes} | {reacted} |"


def _frontier(table: Ablation) -> Iterator[str]:
    rows = [row for row in table.rows if row.frontier]
    if not rows:
        return
    yield (
        f"Designs at the frontier: share with a win rate in [{LOW}, {HIGH}] over {PLAYS} plays without hint by the policy of the "
        f"step, of the designs of {COUNT} generations around it. Rise: slope of a straight line over the run, in points, with "
        "its 95 % interval: over seeds where there are three, else over steps (infra/ablation/frontier.py)."
    )
    yield ""
    yield "| arm | at steps | share at the frontier | rise over the run | seeds |"
    yield "|---|---|---|---|---|"
    for row in rows:
        steps, shares = ", ".join(map(str, row.frontier)), ", ".join(f"{share:.2f}" for share in row.frontier.values())
        yield f"| {row.arm.name} | {steps} | {shares} | {points(row.rise)} | {row.rise.seeds if row.rise else 1} |"
