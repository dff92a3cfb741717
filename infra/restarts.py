"""How often what fails may be started again, and how long to wait before it is: a count for each cause.

In: causes, and how long what failed had lived. Out: pauses. Called by the supervisor, for its children and for local services.
Pure. What has lived HEALTHY_S is no crash loop: its counts begin anew, so that a long run outlives many single deaths.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
HEALTHY_S = 60.0


@dataclass
class Restarts:
    """The failures of one process, by cause."""

    limit: int
    failures: Counter[str] = field(default_factory=Counter)

    def note(self, cause: str, lived_s: float) -> bool:
        """Counts a failure; whether it may be started again."""
        if lived_s >= HEALTHY_S:
            self.failures.clear()
        self.failures[cause] += 1
        return self.failures[cause] <= self.limit

    def pause_s(self) -> float:
        """How long to wait before the next start; doubles with every failure, whatever its cause."""
        return float(min(FIRST_PAUSE_S * 2 ** max(self.failures.total() - 1, 0), LONGEST_PAUSE_S))
