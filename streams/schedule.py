"""The schedule: what happens when, as a function of settings and the log. docs/ARCHITECTURE.md holds the table.

In: ScheduleSettings and, where the run was ended early, its last generation. Out: step, generation and version numbers.
Called by every stage of this package. Pure: no clock, no state.

Step s trains policy version s; version v is the weights after v steps. Generation g serves the K = interval steps gK ..
(g+1)K - 1, and its designs are trained in batch gK + delay: a drain batch where that lies beyond the last step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.settings import ScheduleSettings


@dataclass(frozen=True)
class Schedule:
    """The numbers of one run. `last_generation` None: the run was not ended early."""

    settings: ScheduleSettings
    last_generation: int | None = None

    def ended_at(self, last_generation: int) -> Schedule:
        """The schedule of a run that opens no generation after `last_generation`; the first word counts."""
        if self.last_generation is not None:
            return self
        return Schedule(self.settings, last_generation)

    @property
    def generations(self) -> int:
        """Generations of the run."""
        planned = self.settings.steps // self.settings.interval
        return planned if self.last_generation is None else min(planned, self.last_generation + 1)

    @property
    def steps(self) -> int:
        """Steps with plays; drain batches come after them."""
        return self.generations * self.settings.interval

    def generation_of(self, step: int) -> int:
        """The generation whose environments step `step` plays."""
        return step // self.settings.interval

    def steps_of(self, generation: int) -> range:
        """The steps that a generation serves."""
        return range(generation * self.settings.interval, (generation + 1) * self.settings.interval)

    def design_version(self, generation: int) -> int:
        """The policy version that designs a generation; in the free schedule the least one."""
        return max(0, generation * self.settings.interval - self.settings.lag - self.settings.lead)

    def play_version(self, step: int) -> int:
        """The policy version that plays for a step; in the free schedule the least one."""
        return max(0, step - self.settings.lag)

    def earlier_version(self, step: int, behind: int) -> int:
        """The frozen version that checks whom hints help: `behind` versions before the playing one, always 0 where that is 0."""
        return max(0, self.play_version(step) - behind) if behind else 0

    def memory_generation(self, generation: int) -> int | None:
        """The newest generation that memory may hold for the designs of `generation`; None: nothing to wait for."""
        newest = generation - self.settings.memory_lag
        return newest if newest >= 0 else None

    def eviction_limit(self, step: int) -> int:
        """Plays of `step` are not requested for environments that scores of steps below this limit evicted."""
        return step - self.settings.lag

    def designer_step(self, generation: int) -> int:
        """The batch that trains a generation's designs."""
        return generation * self.settings.interval + self.settings.delay

    def designer_due(self, step: int) -> int | None:
        """The generation whose designs batch `step` trains, if any."""
        generation, rest = divmod(step - self.settings.delay, self.settings.interval)
        return generation if rest == 0 and 0 <= generation < self.generations else None

    def batches(self) -> Iterator[int]:
        """The numbers of all batches in order: steps with plays, then drain batches."""
        yield from range(self.steps)
        for generation in range(self.generations):
            if self.designer_step(generation) >= self.steps:
                yield self.designer_step(generation)

    def next_batch(self, after: int) -> int | None:
        """The batch that follows batch `after` (-1: the first); None after the last."""
        if after + 1 < self.steps:
            return after + 1
        due = (self.designer_step(generation) for generation in range(self.generations))
        return min((step for step in due if step > after and step >= self.steps), default=None)

    def is_drain(self, step: int) -> bool:
        """Whether a batch holds designer samples only."""
        return step >= self.steps

    @property
    def agent_lag_max(self) -> int:
        """Most steps that an agent's sample is old when it is trained."""
        return self.settings.lag_limit("agent")

    @property
    def designer_lag_max(self) -> int:
        """Most steps that a design is old when it is trained."""
        return self.settings.lag_limit("designer")
