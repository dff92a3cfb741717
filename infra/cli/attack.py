"""`spade doctor --attack`: hostile programs against the jails of this machine, each with the barrier that has to stop it.

In: nothing. Out: a table or JSON, and whether all barriers held and nothing was left. Who calls: checks.py. Blocks about 20 s.
May raise SandboxError where no jail can be had.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from infra.cli import options
from infra.plaintext import escape_line

if TYPE_CHECKING:
    from workers.sandbox.attacks.drill import Tried

HELD, NOT_HELD = "[green]held[/green]", "[red]NOT[/red]"


def attack_jails(as_json: bool = False) -> bool:
    """Carries out every attack and prints what came of each. True where all barriers held and nothing is left."""
    from workers.sandbox.attacks import ATTACKS
    from workers.sandbox.attacks.drill import Drill

    drill = Drill()
    level = drill.sandbox.level
    tried: list[Tried] = []
    try:
        with Progress(console=Console(stderr=True) if as_json else options.out, transient=True) as progress:
            for attack in progress.track(ATTACKS, description=f"attacking, sandbox level {level}"):
                tried.append(drill.carry_out(attack))  # noqa: PERF401 - what was tried so far stays where one raises
    finally:
        left = drill.close()
    if as_json:
        print(_as_json(tried, level, left))  # noqa: T201 - wide lines for programs: the console would wrap them
    else:
        _show(tried, level, left)
    return all(one.held for one in tried) and not left


def _show(tried: Sequence[Tried], level: str, left: Sequence[str]) -> None:
    table = Table("attack", "barrier", "outcome", "", show_lines=False)
    for one in tried:
        outcome = one.outcome if not one.trouble else f"{one.outcome}; {one.trouble}"
        table.add_row(
            options.cell(one.attack.name), one.attack.barrier, options.cell(outcome[:80]), HELD if one.held else NOT_HELD
        )
    held = sum(one.held for one in tried)
    options.out.print(table, soft_wrap=False)
    options.out.print(f"{len(tried)} attacks at sandbox level {level}: {held} held, {len(tried) - held} did not")
    options.out.print(f"left on this machine: {', '.join(left)}" if left else "no process, cgroup, mount or descriptor is left")


def _as_json(tried: Sequence[Tried], level: str, left: Sequence[str]) -> str:
    attacks = [
        {
            "attack": one.attack.name,
            "barrier": one.attack.barrier.value,
            "expected": escape_line(one.attack.expected(level)),
            "outcome": escape_line(one.outcome),
            "trouble": escape_line(one.trouble),
            "held": one.held,
        }
        for one in tried
    ]
    held = sum(one.held for one in tried)
    left = [escape_line(what) for what in left]
    return json.dumps(
        {"sandbox_level": level, "attacks": attacks, "held": held, "not_held": len(tried) - held, "left": left}, indent=2
    )
