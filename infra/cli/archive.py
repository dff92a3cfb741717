"""`spade archive RUN`: a finished run's records as files, from which replay and memory rebuild still work."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable

DELETABLE = "deletable.json"  # no part of the archive; as kafka-delete-records.sh --offset-json-file reads it


def archive(
    run: Annotated[str, typer.Argument(help="The id of a run that has finished.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder for the files.", show_default=False)],
    broker: options.Broker = "",
) -> None:
    """Write a finished run's records to files, read them back and compare. Deletes nothing; says what the log could forget.

    `spade replay` and `spade memory rebuild` take the folder with --archive and
    then need no broker. Policies are no records: they stay where the run put
    them. Exit 0: written and equal; 2: the run is unknown or has not finished.
    """
    from infra.archiving import archive_run
    from infra.recordsource import BrokerSource

    source = BrokerSource(options.require_broker(broker))
    with stoppable():
        done = archive_run(source, run, out, time.time(), options.out.print)
    manifest = done.manifest
    stored, held = sum(one.file_bytes for one in manifest.files), sum(one.record_bytes for one in manifest.files)
    options.out.print(
        f"run {run}: {manifest.records} records in {len(manifest.files)} files in {out}, {stored / 1e6:.1f} MB for "
        f"{held / 1e6:.1f} MB; read back, counts and digests are equal"
    )
    if source.unreadable:
        options.out.print(f"{source.unreadable.total()} records that nobody can read belong to no run and were left out")
    places = [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in sorted(done.deletable.items())
    ]
    (out / DELETABLE).write_text(json.dumps({"partitions": places, "version": 1}) + "\n", encoding="utf-8")
    mixed = f"; in {done.mixed} more, records of others stand before them" if done.mixed else ""
    options.out.print(
        f"nothing was deleted. In {len(places)} partitions the log could forget what stands before the offsets in "
        f"{out / DELETABLE}{mixed}: kafka-delete-records.sh --offset-json-file, and only when no memory worker or fork of the "
        "run still reads it"
    )
