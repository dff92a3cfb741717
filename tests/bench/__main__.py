"""`make bench`: figures of sandbox, gate, pipeline, memory and optimisation beside targets. Minutes long; the jails need root."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from tests.bench import ingest, memory, optimise
from tests.bench.jails import Counts, JailBench
from tests.bench.pipeline import measure, pipeline_rows
from tests.bench.table import Row, as_records, as_text, jail_rows

TABLES = ("jails", "pipeline", "memory", "memory-ingest", "optimise")


def tell(what: str) -> None:
    """Progress, to standard error."""
    sys.stderr.write(what + "\n")


def main() -> int:
    """Measures and prints; 0 whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=Counts.rounds)
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    parser.add_argument("--out", type=Path, help="also write the rows there, as JSON")
    given = parser.parse_args()
    began = os.getloadavg()[0]
    rows: list[Row] = []
    if given.only in (None, "jails"):
        bench = JailBench(Counts(rounds=given.rounds))
        try:
            bench.run(tell)
        finally:
            bench.close()
        rows += jail_rows(bench.samples)
    if given.only in (None, "pipeline"):
        tell("a run overlapped, one in turn, one in this process")
        rows += pipeline_rows(measure())
    if given.only in (None, "memory"):
        rows += memory.memory_rows(memory.measure(tell))
    if given.only in (None, "memory-ingest"):
        rows += ingest.ingest_rows(ingest.measure(tell))
    if given.only in (None, "optimise"):
        rows += optimise.optimise_rows(optimise.measure(tell=tell))
    sys.stdout.write(f"{os.cpu_count()} cores, load {began:.1f} before, {os.getloadavg()[0]:.1f} after\n\n{as_text(rows)}")
    if given.out:
        given.out.write_bytes(msgspec.json.format(msgspec.json.encode(as_records(rows)), indent=2) + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
