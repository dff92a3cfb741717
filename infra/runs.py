"""A run's first record: written by `spade run`, read by every process before anything else.

In: a recipe, or a context that names a run (or none: the newest that has not finished). Out: the run with its recipe. Blocks up
to the stated deadline.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from kafka import TopicPartition
from kafka.errors import KafkaError
from pydantic import ValidationError

from infra.corpus.pool import recipe_digest
from infra.kafka import ControlReader, count_partitions, make_consumer, make_producer, unreachable
from schemas import ids
from schemas.codec import decode
from schemas.errors import ModelError, RecordError, SettingsError, StageTimeoutError
from schemas.process import BrokerSettings, ProcessContext
from schemas.run import RunStarted
from schemas.settings import Recipe
from schemas.topics import Topic

PROJECT = Path(__file__).resolve().parent.parent
PACKAGES = ("schemas", "infra", "streams", "workers", "trainer")
POLL_S = 0.2
KNOWN = 5  # runs that a message names
LOG = logging.getLogger(__name__)
CLOCK_SLACK_S = 30.0  # by which the clocks of writers and brokers may differ


@dataclass(frozen=True)
class Run:
    """A run that has started: its first record, and the recipe in it."""

    started: RunStarted
    recipe: Recipe

    @property
    def run_id(self) -> str:
        return self.started.run_id

    @property
    def policy_place(self) -> str:
        """fsspec folder below which policies are published."""
        return self.started.policy_place

    @property
    def dialect(self) -> str:
        return self.started.dialect

    def is_older(self, timestamp_ms: int | None) -> bool:
        """Whether a log record was written before this run: bytes there that can't be read are no matter of the run.

        Their own readers have told of them; counted again, one flood would stop every later run.
        """
        return timestamp_ms is not None and timestamp_ms / 1000 < self.started.created_at - CLOCK_SLACK_S


def start_run(
    recipe: Recipe,
    context: ProcessContext,
    policy_place: str,
    run_id: str = "",
    *,
    forked_from: str = "",
    forked_at: int = -1,
) -> Run:
    """Writes the run's first record and waits for its acknowledgement. Raises ModelError, BrokerError."""
    identity = run_id or context.run_id or new_run_id(recipe.name)
    started = RunStarted(
        run_id=identity,
        event_id=ids.event_id("run-started", identity),
        created_at=time.time(),
        recipe_json=recipe.model_dump_json(),
        recipe_name=recipe.name,
        seed=recipe.seed,
        steps=recipe.schedule.steps,
        policy_place=policy_place,
        code_digest=code_digest(),
        corpus_digest=recipe_digest(recipe, find_folder(recipe.corpus.path)),
        tokenizer_digest=tokenizer_digest(find_folder(recipe.model.path)),
        dialect=recipe.model.dialect,
        forked_from=forked_from,
        forked_at=forked_at,
    )
    with make_producer(context.broker) as producer:
        producer.send_all([(Topic.RUN_STARTED, started)])
    return Run(started=started, recipe=recipe)


def await_run(context: ProcessContext, deadline_s: float = 60.0) -> Run:
    """The run that `context` names, or the newest unfinished one; waits for its first record.

    Raises StageTimeoutError that names what was waited for, BrokerError, and SettingsError where this code can't read the
    recipe in the record.
    """
    end = time.monotonic() + deadline_s
    run_id = context.run_id
    wanted = f"run {run_id}" if run_id else "an unfinished run"
    LOG.info("waiting for %s at %s, up to %.0f s", wanted, context.broker.address, deadline_s)
    while not run_id and time.monotonic() < end:
        run_id = newest_run(context.broker)
        if not run_id:
            time.sleep(POLL_S)
    if run_id:
        with ControlReader(context.broker, [Topic.RUN_STARTED], run_id) as reader:
            while True:
                for _, _, _, record in reader.poll(POLL_S):
                    if isinstance(record, RunStarted):
                        return Run(started=record, recipe=read_recipe(record))
                if time.monotonic() >= end:
                    break
    raise StageTimeoutError(
        f"no {Topic.RUN_STARTED.wire} record of {wanted} at {context.broker.address} within {deadline_s:.0f} s",
        "Start the run (`spade run RECIPE`), or name its id with --run and its broker with --broker",
    )


def read_recipe(started: RunStarted) -> Recipe:
    """The recipe in a run's first record."""
    return parse_recipe(started.recipe_json, started.run_id)


def parse_recipe(recipe_json: str, run_id: str) -> Recipe:
    """A run's recipe as it was written. Raises SettingsError where this code can't read it."""
    try:
        return Recipe.model_validate_json(recipe_json)
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(
            f"the recipe of run {run_id} does not fit this version: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            "Run the version of spade that started it",
        ) from error


def newest_run(broker: BrokerSettings) -> str:
    """The id of the unfinished run whose first record the broker took last (by its own timestamp), "" where there is none."""
    started, finished = read_runs(broker)
    return next((run_id for run_id in started if run_id not in finished), "")


def find_run(broker: BrokerSettings, run_id: str = "") -> str:
    """The run that is named, else the newest unfinished one, else the newest. Raises SettingsError where there is none."""
    started, finished = read_runs(broker)
    if not started:
        raise SettingsError(f"{broker.address} holds no run{f' {run_id}' if run_id else ''}", "Start one with `spade run RECIPE`")
    if run_id and run_id not in started:
        known = ", ".join(started[:KNOWN]) + (", ..." if len(started) > KNOWN else "")
        raise SettingsError(f"there is no run {run_id} at {broker.address} (known: {known})", "Name one of those with --run")
    return run_id or next((one for one in started if one not in finished), started[0])


def read_runs(broker: BrokerSettings) -> tuple[list[str], set[str]]:
    """Every run that has started, newest first, and those that have finished. Raises BrokerError."""
    consumer = make_consumer(broker, None, ())
    try:
        parts = [
            TopicPartition(topic.wire, number)
            for topic in (Topic.RUN_STARTED, Topic.RUN_FINISHED)
            for number in range(count_partitions(consumer, topic.wire, broker))
        ]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        started: dict[str, int] = {}
        finished: set[str] = set()
        end = time.monotonic() + broker.timeout_s
        while any(consumer.position(part) < ends[part] for part in parts) and time.monotonic() < end:
            for part, messages in consumer.poll(timeout_ms=200).items():
                for message in messages:
                    try:
                        record = decode(part.topic, message.value or b"")
                    except RecordError:
                        continue  # the memory sink writes its dead letter
                    if isinstance(record, RunStarted):
                        started.setdefault(record.run_id, message.timestamp)
                    else:
                        finished.add(record.run_id)
    except (KafkaError, OSError) as problem:
        raise unreachable(broker, problem) from problem
    finally:
        consumer.close()
    return sorted(started, key=lambda run_id: (started[run_id], run_id), reverse=True), finished


def new_run_id(name: str) -> str:
    """A fresh id that sorts by time and tells the recipe: NAME-YYYYMMDD-HHMMSS-xxxx."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


def find_folder(path: str) -> Path:
    """A recipe's folder: as it stands where that exists, else among what the project ships. It may not exist."""
    given = Path(path).expanduser()
    shipped = PROJECT / path
    return given if given.is_absolute() or given.is_dir() or not shipped.is_dir() else shipped


def tokenizer_digest(model: Path) -> str:
    """sha256 of the model folder's tokenizer.json, and of its chat template where it has one. Raises ModelError."""
    try:
        digest = hashlib.sha256((model / "tokenizer.json").read_bytes())
        for name in ("chat_template.jinja", "tokenizer_config.json"):
            held = (model / name).read_bytes() if (model / name).is_file() else b""
            digest.update(held if name.endswith(".jinja") or b"chat_template" in held else b"")
        return digest.hexdigest()
    except OSError as problem:
        raise ModelError(
            f"model folder {model} has no readable tokenizer.json ({problem.strerror})",
            "Name a Hugging Face folder with --set model.path=FOLDER, or build the shipped one: `spade nano build`",
        ) from problem


def code_digest() -> str:
    """sha256 over the Python files of the five packages, so that a run says which code made it."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((PROJECT / package).rglob("*.py")):
            digest.update(f"{file.relative_to(PROJECT).as_posix()}\x1f".encode() + file.read_bytes())
    return digest.hexdigest()
