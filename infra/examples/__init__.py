"""Twelve hand-written environments, one for each skill of both settings: examples in the designer's prompts, and for Gymnasium.

Each is a file of the environment contract (docs/SANDBOX.md) below `games` or `tools`, and passes the gate in its setting's form.
Nothing of them runs on import of this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class Example:
    """One environment. `name`: of its file; `hint`: the privileged note that would go with it."""

    name: str
    setting: Literal["games", "tools"]
    skill: str
    hint: str

    @property
    def file(self) -> Path:
        """Where it lies."""
        return FOLDER / self.setting / f"{self.name}.py"

    @property
    def source(self) -> str:
        """The whole file, `solution` included."""
        return self.file.read_text(encoding="utf-8")

    @property
    def gym_id(self) -> str:
        """What `gymnasium.make` takes."""
        return f"spade/{''.join(word.capitalize() for word in self.name.split('_'))}-v0"


EXAMPLES: Final = (
    Example(
        "market_bill",
        "games",
        "Mathematical Reasoning",
        "Multiply each count by its price first and add these up. What comes off the bill comes off before you take it from "
        "what was paid.",
    ),
    Example(
        "seating_order",
        "games",
        "Logical Deduction",
        "Start from clues that leave one person few seats, and go through the cases. Check the row that remains "
        "against every clue.",
    ),
    Example(
        "robot_walk",
        "games",
        "Spatial Reasoning",
        "Plan the whole way before the first move, and keep track of where the robot looks. Turning costs a move, so prefer ways "
        "with few corners.",
    ),
    Example(
        "next_numbers",
        "games",
        "Pattern Recognition",
        "Write down every second number as a list of its own. Look at the differences: equal ones mean that the rule only adds, "
        "growing ones that it doubles first.",
    ),
    Example(
        "short_tour",
        "games",
        "Optimization",
        "Always going to the nearest house can end badly. Drop orders as soon as they cost more than the best one so far.",
    ),
    Example(
        "first_cause",
        "games",
        "Causal Inference",
        "What stands still together with a stopped part lies behind it. Go on with parts that kept running, until nothing keeps "
        "running.",
    ),
    Example(
        "trip_booking",
        "tools",
        "API Orchestration",
        "Ask for the rate of every currency that occurs before you compare. Multiply price by rate, book once, and "
        "report that product.",
    ),
    Example(
        "library_records",
        "tools",
        "Data Retrieval",
        "Go on from page to page until a page comes back empty. Look every number up and leave out what is too old.",
    ),
    Example(
        "stock_levels",
        "tools",
        "State Modification",
        "Count every shelf before you move anything, and write down how far each is from the plan. Move from those above it to "
        "those below it.",
    ),
    Example(
        "locked_upload",
        "tools",
        "Error Recovery",
        "Each error names what is missing: get it from the tool that tells it, then try again. The status shows more than "
        "one thing that you need.",
    ),
    Example(
        "unit_desk",
        "tools",
        "Tool Selection",
        "Ask first from whose side the price is told: the customer's deal is the other side of the desk's. Old "
        "prices don't matter.",
    ),
    Example(
        "order_desk",
        "tools",
        "Multi-Step Workflows",
        "Each step needs a value that an earlier one returned, so keep every number. The whole price is the single price "
        "times the count.",
    ),
)


def worked_example(setting: str, skill: str) -> Example:
    """The example that a designer of `skill` is shown: that of the setting's next skill, so that there is nothing to copy."""
    own = [example for example in EXAMPLES if example.setting == setting]
    place = next((index for index, example in enumerate(own) if example.skill == skill), -1)
    return own[(place + 1) % len(own)]
