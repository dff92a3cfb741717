"""The targets' table: what was measured, its target, what was seen. In: samples. Out: rows, as text or JSON.

Ratios are of medians of one interleaved run; targets are those of the sandbox's specification. "holds" is told, not asserted:
figures of a busy machine say little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One line: `seen` and `target` (an upper bound, unless `at_least`) in the same unit; without a target only told."""

    what: str
    seen: float
    target: float = math.nan
    unit: str = ""
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the target is met (true where there is none)."""
        return math.isnan(self.target) or (self.seen >= self.target if self.at_least else self.seen <= self.target)


def jail_rows(samples: Mapping[str, Sequence[float]]) -> list[Row]:
    """Every row of the targets' table, and the gate's cost."""
    mid = {name: median(values) for name, values in samples.items()}
    spread = _spread(samples["step"])
    rows = [
        Row("fresh stdlib jail ready / python -I -S -c pass", mid["jail"] / mid["python"], 5),
        Row("jail + gymnasium + numpy / the same without jail", mid["packages in a jail"] / mid["packages"], 1.4),
        Row("zygote episode start / plain fork of a Python process", mid["episode start"] / mid["fork"], 2),
        Row("ready pool: hand-out + make + reset", mid["hand-out"] * 1e3, 5, "ms"),
        Row("full step / plain pipe echo, with host timeouts", mid["step"] / mid["echo"], 8),
        Row("step p99 / p50", spread, 5),
        Row("step p99 / p50, as a ratio to that of the plain pipe echo in turn with it", spread / _spread(samples["echo"])),
        Row("kill of a computing jail, p50", mid["kill"] * 1e3, 10, "ms"),
        Row("kill of a computing jail, most", max(samples["kill"]) * 1e3, 100, "ms"),
        Row("memory (PSS) a session at 64, stdlib, a jail each", mid["memory, jails"], 8, "MiB"),
        Row("memory (PSS) a session at 64, stdlib, one zygote", mid["memory, zygote"], 8, "MiB"),
        Row("memory (PSS) a session at 64, gymnasium, a jail each", mid["memory, heavy jails"], 25, "MiB"),
        Row("memory (PSS) a session at 64, gymnasium, one zygote", mid["memory, heavy zygote"], 25, "MiB"),
        Row(
            "episodes of 20 steps a second, zygote / fresh jail", mid["episode, fresh jail"] / mid["episode, zygote"], 4, "", True
        ),
        Row("the same, zygote alone", 1 / mid["episode, zygote"], unit="/s"),
    ]
    for name, target in (("nano", 0.15), ("large", 0.5)):
        rows += [
            Row(f"gate, {name} design: CPU, jails ready, nothing beside", mid[f"{name} warm cpu"], target, "s"),
            Row(f"gate, {name} design: CPU with the start of its jails", mid[f"{name} cpu"], unit="s"),
            Row(f"gate, {name} design: CPU / that of python -I -S -c pass", mid[f"{name} cpu"] / mid["python cpu"]),
            Row(f"gate, {name} design: wall time, jails ready", mid[f"{name} wall"], unit="s"),
        ]
    rows.append(Row("gate, nano design: CPU, jails ready, beside work", mid["nano beside work warm cpu"], 0.15, "s"))
    return rows


def _spread(values: Sequence[float]) -> float:
    """The 99th percentile as a multiple of the median."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(len(ordered) * 0.99) - 1)] / median(ordered)


def as_text(rows: Sequence[Row]) -> str:
    """A table of GitHub's Markdown."""
    lines = ["| what | target | seen | |", "|---|---|---|---|"]
    for row in rows:
        sign = ">=" if row.at_least else "<="
        target = "" if math.isnan(row.target) else f"{sign} {row.target:g} {row.unit}".strip()
        lines.append(f"| {row.what} | {target} | {row.seen:.3g} {row.unit}".rstrip() + f" | {'' if row.holds else 'missed'} |")
    return "\n".join(lines) + "\n"


def as_records(rows: Sequence[Row]) -> list[dict[str, object]]:
    """For JSON."""
    return [
        {
            "what": row.what,
            "target": None if math.isnan(row.target) else row.target,
            "at_least": row.at_least,
            "seen": row.seen,
            "unit": row.unit,
            "holds": row.holds,
        }
        for row in rows
    ]
