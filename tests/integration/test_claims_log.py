"""Records larger than a message through the real broker: by claim check to workers, a Faust stage, memory and the archive."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.archive import Archive
from infra.archiving import archive_run
from infra.claims import MARK
from infra.clickhouse import connect
from infra.kafka import ControlReader, fetch, make_consumer, make_producer
from infra.local.broker import LocalBroker
from infra.local.store import LocalStore
from infra.recordsource import BrokerSource
from infra.topics import create_topics
from schemas import ids
from schemas.common import Reference
from schemas.design import EnvProposed, Member, SlotsClosed
from schemas.errors import ClaimError
from schemas.process import BrokerSettings
from schemas.rollout import RolloutRequested
from schemas.topics import Topic
from tests import echoworkers
from tests.streamworld import policy
from workers.memory import MemorySink

pytestmark = pytest.mark.integration
LARGE = 9_000_000
DEADLINE_S = 120.0  # bounds a hang


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSettings]:
    """A broker of this module: a claim in the shared one would be asked for by every later test that reads all it holds."""
    broker = LocalBroker.start(tmp_path_factory.mktemp("broker"))
    settings = BrokerSettings(address=broker.address)
    create_topics(settings, partitions=12)
    yield settings
    broker.stop()


@pytest.fixture
def roomy(own_broker: BrokerSettings, tmp_path: Path) -> BrokerSettings:
    return own_broker.model_copy(update={"claims": str(tmp_path / "claims")})


def test_a_workers_large_answer_reaches_memory_and_archive_and_a_missing_content_stops_with_its_place(
    own_broker: BrokerSettings, roomy: BrokerSettings, store: LocalStore, run_id: str, tmp_path: Path
) -> None:
    run = echoworkers.write_run(roomy, run_id)
    member = echoworkers.Member(roomy, run, lambda record: None)
    echoworkers.ask(roomy, run_id, [1, LARGE])
    echoworkers.finish(roomy, run_id)
    member.join(DEADLINE_S)
    assert (member.is_alive(), member.problem) == (False, None)

    source = BrokerSource(roomy)
    answers = list(source.scan([Topic.ENV_PROPOSED], run_id))
    records = [one.record for one in answers if isinstance(one.record, EnvProposed)]
    assert sorted((len(record.source), record.lost) for record in records) == [(1, ""), (LARGE, "")]
    (large,) = (one for one in answers if len(one.data) > LARGE)
    assert raw_bytes(roomy, large.topic, large.partition, large.offset).startswith(MARK)
    place = Reference(topic=large.topic.wire, partition=large.partition, offset=large.offset, id=large.record.event_id)
    assert fetch(roomy, [place]) == {place.id: large.record}

    client = connect(store.dsn)
    sink = MemorySink(roomy, client, run_id)
    drain(sink)
    sink.close()
    sql = "SELECT length(source) AS size FROM designs FINAL WHERE run_id = {run:String} ORDER BY size"
    assert [int(row["size"]) for row in client.query(sql, {"run": run_id})] == [1, LARGE]

    archive_run(source, run_id, tmp_path / "archive", time.time())
    shutil.rmtree(tmp_path / "claims")
    archived = [one.record for one in Archive(tmp_path / "archive").scan([Topic.ENV_PROPOSED], run_id)]
    assert archived == records
    lacking = MemorySink(roomy, client, f"{run_id}-other")  # of another run: its content is not asked for
    drain(lacking)
    lacking.close()
    client.close()
    write_finished(roomy, f"{run_id}-third")
    archive_run(BrokerSource(own_broker), f"{run_id}-third", tmp_path / "third", time.time())  # it knows no place at all
    with pytest.raises(ClaimError, match="of spade-env-proposed stands apart"):
        archive_run(source, run_id, tmp_path / "again", time.time())
    with pytest.raises(ClaimError, match=rf"{tmp_path}/claims/{run_id}/[0-9a-f]{{64}} can't be read .*Restore the file"):
        fetch(roomy, [place])


def write_finished(broker: BrokerSettings, run_id: str) -> None:
    """A run that is over before it did anything."""
    echoworkers.write_run(broker, run_id)
    echoworkers.finish(broker, run_id)


def raw_bytes(broker: BrokerSettings, topic: Topic, partition: int, offset: int) -> bytes:
    from kafka import TopicPartition

    consumer, part = make_consumer(broker, None, ()), TopicPartition(topic.wire, partition)
    try:
        consumer.assign([part])
        consumer.seek(part, offset)
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            for message in consumer.poll(timeout_ms=200).get(part, ()):
                return bytes(message.value)
    finally:
        consumer.close()
    raise AssertionError("nothing was read")


def drain(sink: MemorySink) -> None:
    end = time.monotonic() + DEADLINE_S
    while not sink.drain() and time.monotonic() < end:
        sink.step()


@pytest.fixture
def stage(roomy: BrokerSettings, run_id: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The rollout stage as `spade stream` runs it, told of the place by the broker's TOML file."""
    (tmp_path / "broker.toml").write_text(f'address = "{roomy.address}"\nclaims = "{roomy.claims}"\n')
    echoworkers.write_run(roomy, run_id)
    command = [sys.executable, "-P", "-m", "infra.cli", "stream", "rollout", "--run", run_id, "--metrics-port", "0"]
    command += ["--broker", str(tmp_path / "broker.toml"), "--state-dir", str(tmp_path / "state")]
    with (tmp_path / "stage.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
        yield process
        process.kill()
        process.wait(10)


def test_a_faust_stage_reads_a_large_input_and_writes_a_large_request(
    roomy: BrokerSettings, run_id: str, stage: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    proposal = Reference(topic=Topic.ENV_PROPOSED.wire, partition=0, offset=0, id="p")
    member = Member(
        env_id="env", slot=0, design_attempt=0, skill="", document_id="", group="", source="x" * LARGE, hint="",
        proposal=proposal, source_digest="", witness_min_return=1.0, reward_min=0.0,
    )  # fmt: skip
    slots = SlotsClosed(run_id=run_id, event_id="slots", generation=0, policy_version=0, members=[member])
    with make_producer(roomy) as producer:
        producer.send_all([(Topic.POLICY_PUBLISHED, policy(run_id, 0)), (Topic.SLOTS_CLOSED, slots)])
    found: list[RolloutRequested] = []
    end = time.monotonic() + DEADLINE_S
    while not found and time.monotonic() < end and stage.poll() is None:
        scan = BrokerSource(roomy).scan([Topic.ROLLOUT_REQUESTED], run_id)
        found = [one.record for one in scan if isinstance(one.record, RolloutRequested)]
        time.sleep(0.2)
    assert found, (tmp_path / "stage.log").read_text()[-3000:]
    assert found[0].event_id == ids.rollout_unit_id(run_id, 0, 0)
    assert found[0].environments[0].source == member.source
    echoworkers.finish(roomy, run_id)
    assert stage.wait(DEADLINE_S) == 0, (tmp_path / "stage.log").read_text()[-3000:]
    with ControlReader(roomy, [Topic.SLOTS_CLOSED], run_id) as reader:
        assert [record for _, _, _, record in reader.catch_up()] == [slots]
