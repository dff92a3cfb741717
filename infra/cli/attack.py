"""`spade doctor --attack`: hostile programs against the jails of this machine, each with the barrier that has to stop it.

In: nothing. Out: a table, and whether all barriers held and nothing was left. Who calls: checks.py. Blocks about 20 s. May raise
SandboxError where no jail can be had.
"""

from __future__ import annotations

from rich.progress import Progress
from rich.table import Table

from infra.cli import options

HELD, NOT_HELD = "[green]held[/green]", "[red]NOT[/red]"


def attack_jails() -> bool:
    """Carries out every attack and prints what came of each. True where all barriers held and nothing is left."""
    from workers.sandbox.attacks import ATTACKS
    from workers.sandbox.attacks.drill import Drill

    drill = Drill()
    failed = 0
    table = Table("attack", "barrier", "outcome", "", show_lines=False)
    try:
        with Progress(console=options.out, transient=True) as progress:
            for attack in progress.track(ATTACKS, description=f"attacking, sandbox level {drill.sandbox.level}"):
                tried = drill.carry_out(attack)
                failed += not tried.held
                outcome = tried.outcome if not tried.trouble else f"{tried.outcome}; {tried.trouble}"
                table.add_row(
                    options.cell(attack.name), attack.barrier, options.cell(outcome[:80]), HELD if tried.held else NOT_HELD
                )
    finally:
        left = drill.close()
    options.out.print(table, soft_wrap=False)
    options.out.print(
        f"{len(ATTACKS)} attacks at sandbox level {drill.sandbox.level}: {len(ATTACKS) - failed} held, {failed} did not"
    )
    options.out.print(f"left on this machine: {', '.join(left)}" if left else "no process, cgroup, mount or descriptor is left")
    return not failed and not left
