"""What the log says about a run's training, as far as it was read. Called by trainer/loop; pure.

The first record for a batch number counts, in log order; for a version the last publication counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.common import Record, Reference
from schemas.run import RunEnding, RunFinished
from schemas.topics import Topic
from schemas.train import BatchReady, PolicyPublished, StepFinished

TOPICS = (Topic.BATCH_READY, Topic.RUN_ENDING, Topic.POLICY_PUBLISHED, Topic.STEP_FINISHED, Topic.RUN_FINISHED)


@dataclass
class Logbook:
    """Batches that wait, by number; publications by version; which steps and whether the run were told finished."""

    batches: dict[int, tuple[BatchReady, Reference]] = field(default_factory=dict)
    published: dict[int, PolicyPublished] = field(default_factory=dict)
    finished_steps: set[int] = field(default_factory=set)
    ending: RunEnding | None = None
    finished: RunFinished | None = None

    def absorb(self, entries: Iterable[tuple[Topic, int, int, Record]], last: int) -> None:
        """Takes in what was read; batches up to number `last` are trained already and are left out."""
        for topic, partition, offset, record in entries:
            if isinstance(record, BatchReady):
                if record.step > last:
                    reference = Reference(topic=topic.wire, partition=partition, offset=offset, id=record.event_id)
                    self.batches.setdefault(record.step, (record, reference))
            elif isinstance(record, PolicyPublished):
                self.published[record.version] = record
            elif isinstance(record, StepFinished):
                self.finished_steps.add(record.step)
            elif isinstance(record, RunEnding):
                self.ending = self.ending or record
            elif isinstance(record, RunFinished):
                self.finished = self.finished or record

    def close(self, number: int) -> None:
        """Forgets a batch that was trained."""
        self.batches.pop(number, None)
