"""Which batch numbers the trainer waits for, in order, how old their samples may be, and which policies are still needed. Pure.

In: schedule settings, the last generation where the run ends early, the last number that was trained. Called by trainer/loop.
Batch s belongs to step s; after the last step come the drain batches, numbered gK + delay.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.errors import TrainingError
from schemas.settings import ScheduleSettings
from schemas.train import BatchReady


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

    def check_age(self, batch: BatchReady) -> None:
        """Raises TrainingError where a sample is older than its role's bound, or newer than the version that the batch trains."""
        for sample in batch.samples:
            age, bound = batch.step - sample.policy_version, self.schedule.lag_limit(sample.role)
            if not 0 <= age <= bound:
                raise TrainingError(
                    f"batch {batch.step} holds sample {sample.sample_id} ({sample.role}) of policy {sample.policy_version}: "
                    f"{age} versions old where 0 to {bound} are allowed",
                    "The batch record is wrong: report it with the log; nothing was trained",
                )

    def needed_versions(self, last: int, keep: int, earlier: int = 0, every: int = 0) -> set[int]:
        """Versions that open work may still name when number `last` is trained, besides 0 and the newest `keep`.

        `earlier`: how far a frozen earlier policy plays behind the playing one. `every`: of so many generations one version is
        kept for good; 0: of none.
        """
        newest = last + 1
        oldest = newest - max(keep - 1, self.schedule.interval + self.schedule.lag + max(self.schedule.lead, earlier))
        lasting = range(0, newest + 1, every * self.schedule.interval) if every else ()
        return {0, *lasting, *range(max(0, oldest), newest + 1)}
