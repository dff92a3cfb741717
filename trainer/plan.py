"""Which batch numbers the trainer waits for, in order, and which policies the schedule still needs. Pure.

In: schedule settings, the last generation where the run ends early, the last number that was trained. Called by trainer/loop.
Batch s belongs to step s; after the last step come the drain batches, numbered gK + delay.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.settings import ScheduleSettings


@dataclass(frozen=True)
class TrainPlan:
    """The order of batches of a run that opens generations 0 .. `last_generation` (None: all that the steps hold)."""

    schedule: ScheduleSettings
    last_generation: int | None = None

    @property
    def generations(self) -> int:
        planned = self.schedule.steps // self.schedule.interval
        return planned if self.last_generation is None else max(0, min(planned, self.last_generation + 1))

    @property
    def steps(self) -> int:
        """Optimizer steps with plays."""
        return self.generations * self.schedule.interval

    @property
    def drains(self) -> tuple[int, ...]:
        """Numbers of the drain batches."""
        due = (generation * self.schedule.interval + self.schedule.delay for generation in range(self.generations))
        return tuple(number for number in due if number >= self.steps)

    def following(self, last: int) -> int | None:
        """The number after `last` (-1: none yet); None where the run is complete."""
        if last + 1 < self.steps:
            return last + 1
        return next((number for number in self.drains if number > last), None)

    def needed_versions(self, last: int, keep: int, earlier: int = 0, every: int = 0) -> set[int]:
        """Versions that open work may still name when number `last` is trained, besides 0 and the newest `keep`.

        `earlier`: how far a frozen earlier policy plays behind the playing one. `every`: of so many generations one version is
        kept for good; 0: of none.
        """
        newest = last + 1
        oldest = newest - max(keep - 1, self.schedule.interval + self.schedule.lag + max(self.schedule.lead, earlier))
        lasting = range(0, newest + 1, every * self.schedule.interval) if every else ()
        return {0, *lasting, *range(max(0, oldest), newest + 1)}
