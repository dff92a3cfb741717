"""What a stage's pure join takes and gives, and the loop that all joins share.

In: records with their place in the log. Out: `Outputs`. Called by the Faust shell (streams/app.py) and by tests. A join does no
I/O, reads no clock and draws no random number: what it gives is a function of what it was given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from schemas.common import Record, Reference
from schemas.settings import Recipe
from schemas.topics import Topic
from streams.schedule import Schedule

Position = tuple[str, int, int]  # topic, partition, offset


class Stage(Enum):
    """The stream stages."""

    DESIGN = "design"
    ROLLOUT = "rollout"
    SCORE = "score"
    BATCH = "batch"


def group_name(stage: Stage, run_id: str) -> str:
    """The consumer group of a stage in a run; worker pools of the same stage word have groups of their own."""
    return f"spade-stream-{stage.value}-{run_id}"


@dataclass(frozen=True)
class Positioned:
    """A record and where it stands."""

    topic: Topic
    partition: int
    offset: int
    record: Record

    @property
    def position(self) -> Position:
        return self.topic.wire, self.partition, self.offset

    @property
    def reference(self) -> Reference:
        return Reference(topic=self.topic.wire, partition=self.partition, offset=self.offset, id=self.record.event_id)


@dataclass(frozen=True)
class Emit:
    """A record to be written. `unit` (index, count) places a work package over the pool; None: by the record's key."""

    record: Record
    unit: tuple[int, int] | None = None


@dataclass
class Outputs:
    """What one call decided: records to write, inputs that are finished once these are acknowledged, generations to open."""

    records: list[Emit] = field(default_factory=list)
    finished: list[Position] = field(default_factory=list)
    openings: list[int] = field(default_factory=list)  # design only: generations that memory has to be asked for

    def add(self, other: Outputs) -> None:
        """Appends the other's decisions."""
        self.records += other.records
        self.finished += other.finished
        self.openings += other.openings


class Join(ABC):
    """State of one run in one stage. Call `recover` once, before anything else; then `learn` and `accept` in any interleaving.

    Everything is idempotent: the first record of an id by log order counts, later ones are finished at once.
    """

    def __init__(self, run_id: str, recipe: Recipe) -> None:
        self.run_id = run_id
        self.recipe = recipe
        self.schedule = Schedule(recipe.schedule)

    def recover(self, known: Iterable[Positioned]) -> Outputs:
        """Takes the stage's own outputs and the control records, as they stand in the log at an assignment."""
        for positioned in known:
            self._know(positioned)
        return self._advance()

    def learn(self, positioned: Positioned) -> Outputs:
        """Takes a control record, which is never acknowledged."""
        self._know(positioned)
        return self._advance()

    def accept(self, positioned: Positioned) -> Outputs:
        """Takes an input of the group; its position is finished in this or a later answer."""
        if self._hold(positioned):
            return self._advance()
        return Outputs(finished=[positioned.position])

    @abstractmethod
    def _know(self, positioned: Positioned) -> None:
        """Notes a control record or an output of this stage. Decides nothing."""

    @abstractmethod
    def _hold(self, positioned: Positioned) -> bool:
        """Notes an input; False where its group has closed or it is known, so that it is finished at once."""

    @abstractmethod
    def _advance(self) -> Outputs:
        """Everything that is due by what is known now; notes it as written."""
