"""The fourteen families over the six games skills, by name."""

from trainer.nano.families import causes, choice, deduction, number, pattern, space
from trainer.nano.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family for module in (number, deduction, space, pattern, choice, causes) for family in module.FAMILIES
}
"""Every family by its name, in a fixed order."""

USELESS_HINTS = (
    "be careful",
    "take your time",
    "read the task twice",
    "stay calm and think",
    "you can do this",
)
"""Hints that name no method: the warm start answers as if there were none, so a designer can learn to write better ones."""


def families_of(skill: str) -> list[Family]:
    """The families that declare this skill; empty for a skill that no family knows."""
    return [family for family in FAMILIES.values() if family.skill == skill]
