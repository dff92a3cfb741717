"""A log in a list. Passes the contract of record sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from infra.recordsource import LogRecord
from schemas.codec import encode
from schemas.common import Record
from schemas.topics import BY_RECORD, Topic


class ListSource:
    """See infra.recordsource.RecordSource. Records get their offsets in the order in which they are added."""

    def __init__(self, records: Iterable[tuple[int, Record]] = ()) -> None:
        """`records`: (partition, record)."""
        self.name = "the list"
        self.unreadable: Counter[tuple[str, int]] = Counter()
        self.held: list[LogRecord] = []
        for partition, record in records:
            self.add(record, partition)

    def add(self, record: Record, partition: int = 0) -> LogRecord:
        topic = BY_RECORD[type(record)]
        offset = sum((one.topic, one.partition) == (topic, partition) for one in self.held)
        self.held.append(LogRecord(topic, partition, offset, 1000 + offset, record.run_id.encode(), encode(record), record))
        return self.held[-1]

    def scan(self, topics: Sequence[Topic], run_id: str = "") -> Iterator[LogRecord]:
        wanted = [one for one in self.held if one.topic in topics and run_id in ("", one.record.run_id)]
        yield from sorted(wanted, key=lambda one: (list(topics).index(one.topic), one.partition, one.offset))
