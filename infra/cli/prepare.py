"""The part of the install that is not packages: `python -m infra.cli.prepare`, called by `make install`. Can be repeated.

Fetches Apache Kafka's jars and checks them and the Java runtime against the lock file, runs the broker once (from then on it
starts in half the time) and DeepSpeed once (Python compiles thousands of modules then), builds the jail's root. Each says what
it did; what fails ends with one line and a non-zero code. A machine that can't jail still gets everything else, and the doctor
says what is missing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from schemas.errors import BrokerError, DiskFullError, SandboxError, SpadeError


def prepare(say: Callable[[str], None]) -> None:
    """Does all of it. Raises ArtifactError and what the training engine raises."""
    from infra.local.broker import ensure_start_cache
    from infra.local.jars import ensure_jars, java
    from infra.topics import create_topics
    from schemas.process import BrokerSettings
    from trainer.prepare import prepare as start_deepspeed
    from workers.sandbox.root import build_root, default_cache_dir

    java()
    say(f"Kafka's jars: {ensure_jars()}")
    try:
        say(f"its quick start: {ensure_start_cache(lambda address: create_topics(BrokerSettings(address=address)))}")
    except (BrokerError, DiskFullError) as error:
        say(f"its quick start can't be made, and it starts slower: {error}")
    started = time.monotonic()
    start_deepspeed()
    say(f"DeepSpeed works here ({time.monotonic() - started:.0f} s)")
    try:
        say(f"the jail's root: {build_root(default_cache_dir())}")
    except SandboxError as error:
        say(f"the jail's root can't be built: {error} (`spade doctor` tells more)")


def main() -> int:
    """Entry point; the exit code."""
    try:
        prepare(lambda line: print(line, flush=True))  # noqa: T201
    except SpadeError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
