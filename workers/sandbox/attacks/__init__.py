"""Hostile programs, as data: the tests run them and what stops them, `spade doctor --attack` runs them on the user's machine.

In: nothing. Out: ATTACKS, in the order in which they are shown. Who calls: drill.py and its users.
"""

from __future__ import annotations

from typing import Final

from workers.sandbox.attacks import filesystem, protocol, resources, secrets, siblings, syscalls
from workers.sandbox.attacks.base import Attack

ATTACKS: Final[tuple[Attack, ...]] = tuple(
    attack
    for module in (filesystem, secrets, syscalls, siblings, resources, protocol)
    for attack in module.ATTACKS
    if attack.runs_here()
)
