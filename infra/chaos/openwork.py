"""Which kinds of process of a run have open work, by its log: what they were asked for and have not answered yet.

In: first copies of the run's records, in any order between partitions. Out: open ids by kind. Called by the storm, which strikes
a process only while it has open work, and again only after it has answered something since. Pure.
"""

from __future__ import annotations

from collections import Counter

from schemas.common import Record
from schemas.design import DesignRequested, EnvProposed, EnvRejected, EnvValidated, SlotsClosed
from schemas.rollout import AuditFinished, AuditRequested, RolloutFinished, RolloutRequested
from schemas.score import EnvScored
from schemas.settings import ScheduleSettings
from schemas.train import BatchReady, PolicyPublished, StepFinished

Item = tuple[object, ...]
DESIGN, VALIDATE, ROLLOUT, TRAIN = "work-design", "work-validate", "work-rollout", "train"
STREAM_DESIGN, STREAM_ROLLOUT, STREAM_SCORE, STREAM_BATCH = "stream-design", "stream-rollout", "stream-score", "stream-batch"
KINDS = (DESIGN, VALIDATE, ROLLOUT, TRAIN, STREAM_DESIGN, STREAM_ROLLOUT, STREAM_SCORE, STREAM_BATCH)


class OpenWork:
    """Asked for and not answered, by kind. An answer may be taken before its question: the partitions are read side by side."""

    def __init__(self, schedule: ScheduleSettings) -> None:
        self._interval = schedule.interval
        self._asked: dict[str, dict[Item, None]] = {kind: {} for kind in KINDS}
        self._answered: dict[str, set[Item]] = {kind: set() for kind in KINDS}
        self.answers: Counter[str] = Counter()

    def open(self, kind: str) -> list[Item]:
        """What the kind was asked for and has not answered."""
        return list(self._asked[kind])

    def any_open(self) -> bool:
        """Whether any kind has open work."""
        return any(self._asked.values())

    def take(self, record: Record) -> None:
        """Notes what a record asks for and what it answers."""
        match record:
            case DesignRequested():
                self._ask(DESIGN, *[(slot.env_id,) for slot in record.slots])
            case EnvProposed(env_id=env_id):
                self._answer(DESIGN, (env_id,))
                self._ask(VALIDATE, (env_id,))
            case EnvValidated(env_id=env_id, generation=generation) | EnvRejected(env_id=env_id, generation=generation):
                self._answer(VALIDATE, (env_id,))
                self._ask(STREAM_DESIGN, (generation, env_id))
            case SlotsClosed(generation=generation):
                self._answer_all(STREAM_DESIGN, generation)
                steps = range(generation * self._interval, (generation + 1) * self._interval)
                self._ask(STREAM_ROLLOUT, *[(step,) for step in steps] if record.members else ())
            case RolloutRequested(step=step):
                self._answer(STREAM_ROLLOUT, (step,))
                self._ask(ROLLOUT, *[(play.play_id,) for play in record.plays])
            case RolloutFinished():
                self._answer(ROLLOUT, (record.play_id,))
                self._ask(STREAM_SCORE, (record.env_id, record.step))
            case AuditRequested(play_id=play_id):
                self._ask(VALIDATE, ("audit", play_id))
            case AuditFinished(play_id=play_id):
                self._answer(VALIDATE, ("audit", play_id))
            case EnvScored(env_id=env_id, step=step):
                self._answer(STREAM_SCORE, (env_id, step))
                self._ask(STREAM_BATCH, (step, env_id))
            case BatchReady(step=step):
                self._answer_all(STREAM_BATCH, step)
                self._ask(TRAIN, (step,))
            case StepFinished(step=step):
                self._answer(TRAIN, (step,))
            case PolicyPublished():
                self.answers[TRAIN] += 1
            case _:
                pass

    def _ask(self, kind: str, *items: Item) -> None:
        answered = self._answered[kind]
        self._asked[kind].update(dict.fromkeys(item for item in items if item not in answered and item[:1] not in answered))

    def _answer(self, kind: str, item: Item) -> None:
        self._answered[kind].add(item)
        self._asked[kind].pop(item, None)
        self.answers[kind] += 1

    def _answer_all(self, kind: str, first: object) -> None:
        """One answer to every item that begins with `first`."""
        self._answered[kind].add((first,))
        for item in [item for item in self._asked[kind] if item[0] == first]:
            del self._asked[kind][item]
        self.answers[kind] += 1
