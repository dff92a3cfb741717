"""Workers with the real consume loop whose work is an echo: in threads of a test, or as a process that can be stopped and killed.

`python -m tests.echoworkers CONTEXT_JSON FOLDER DELAY_S`: notes each unit that it begins in FOLDER, and waits in it while
FOLDER/hold exists. Called by tests of stalls, rebalances and outages.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.kafka import make_producer
from infra.runs import Run, await_run
from schemas import ids
from schemas.common import Record, Reference, SamplingSettings
from schemas.design import DesignRequested, EnvProposed
from schemas.process import BrokerSettings, ProcessContext
from schemas.run import RunFinished, RunStarted
from schemas.settings import Recipe
from schemas.topics import Topic
from workers.consumer import UnitConsumer
from workers.stage import Outputs, Stage
from workers.stopping import stop_on_signals

SESSION_S = 6.0
STAGE = Stage("echo", (Topic.DESIGN_REQUESTED,), deadline_s=60, prefetch=3, tries=100)


class Echo:
    """One proposal a unit; `before` may block."""

    def __init__(self, before: Callable[[DesignRequested], None]) -> None:
        self._before = before

    def run(self, record: Record, at: Reference) -> Outputs:
        assert isinstance(record, DesignRequested)
        self._before(record)
        return [(Topic.ENV_PROPOSED, proposal_of(record))]

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        assert isinstance(record, DesignRequested)
        return [(Topic.ENV_PROPOSED, proposal_of(record, reason))]


def proposal_of(record: DesignRequested, lost: str = "") -> EnvProposed:
    name = ids.derive("echo", record.unit_id)
    return EnvProposed(
        run_id=record.run_id, event_id=name, env_id=name, unit_id=record.unit_id, generation=record.generation, slot=0,
        design_attempt=0, skill="", document_id="", group="", source="x" * record.generation, lost=lost,
    )  # fmt: skip


def write_run(broker: BrokerSettings, run_id: str) -> Run:
    """The first record of a run without stages."""
    recipe = Recipe()
    told = dict.fromkeys(("policy_place", "code_digest", "corpus_digest", "tokenizer_digest", "dialect", "recipe_name"), "")
    started = RunStarted(
        run_id=run_id, event_id="s", created_at=time.time(), recipe_json=recipe.model_dump_json(), seed=0, steps=4, **told  # type: ignore[arg-type]  # fields by name
    )  # fmt: skip
    with make_producer(broker) as producer:
        producer.send_all([(Topic.RUN_STARTED, started)])
    return Run(started=started, recipe=recipe)


def ask(broker: BrokerSettings, run_id: str, numbers: Sequence[int]) -> list[Reference]:
    """Writes units, spread over twelve partitions."""
    units = []
    for number in numbers:
        name = ids.derive("unit", run_id, number)
        units.append(
            DesignRequested(
                run_id=run_id, event_id=name, unit_id=name, generation=number, design_attempt=0, policy_version=0,
                settings=SamplingSettings(), slots=[],
            )
        )  # fmt: skip
    with make_producer(broker) as producer:
        sent = [producer.send(Topic.DESIGN_REQUESTED, one, partition=one.generation % 12) for one in units]
        producer.flush()
        return [one.result() for one in sent]


def finish(broker: BrokerSettings, run_id: str) -> None:
    """The run's last record."""
    numbers = dict.fromkeys(("steps", "drain_steps", "final_version", "agent_samples", "designer_samples"), 0)
    with make_producer(broker) as producer:
        record = RunFinished(run_id=run_id, event_id="f", final_digest="", cause="done", **numbers)  # type: ignore[arg-type]  # fields by name
        producer.send_all([(Topic.RUN_FINISHED, record)])


class Member(threading.Thread):
    """A worker in a thread."""

    def __init__(self, broker: BrokerSettings, run: Run, before: Callable[[DesignRequested], None]) -> None:
        super().__init__(daemon=True)
        self.halt = threading.Event()
        self.problem: BaseException | None = None
        context = ProcessContext(broker=broker, run_id=run.run_id)
        self._consumer = UnitConsumer(context, run, STAGE, Echo(before), self.halt, session_s=SESSION_S)
        self.start()

    def run(self) -> None:
        try:
            self._consumer.run()
        except BaseException as problem:  # noqa: BLE001 - looked at by the test
            self.problem = problem


class Tide:
    """A pool that grows and shrinks at random, by a seed, between one member and `most`."""

    def __init__(self, make_member: Callable[[], Member], seed: int, most: int = 4) -> None:
        self._make_member, self._most = make_member, most
        self._draw = random.Random(seed)
        self.living = [make_member()]
        self.gone: list[Member] = []
        self.moves = 0

    def move(self) -> None:
        """One member more, or one less."""
        grow = len(self.living) < 2 or (len(self.living) < self._most and self._draw.random() < 0.5)
        if grow:
            self.living.append(self._make_member())
        else:
            leaver = self.living.pop(self._draw.randrange(len(self.living)))
            leaver.halt.set()
            self.gone.append(leaver)
        self.moves += 1

    def end(self, limit_s: float = 60.0) -> list[BaseException]:
        """Waits for all; what they raised."""
        for member in [*self.living, *self.gone]:
            member.join(limit_s)
            assert not member.is_alive()
        return [member.problem for member in [*self.living, *self.gone] if member.problem is not None]


def main(argv: Sequence[str]) -> None:
    """The process; see the module."""
    context, folder, delay_s = ProcessContext.model_validate_json(argv[1]), Path(argv[2]), float(argv[3])

    def before(record: DesignRequested) -> None:
        (folder / f"began-{record.generation}").touch()
        while (folder / "hold").exists():
            time.sleep(0.02)
        time.sleep(delay_s)

    with stop_on_signals() as stop:
        UnitConsumer(context, await_run(context), STAGE, Echo(before), stop, session_s=SESSION_S).run()


if __name__ == "__main__":
    main(sys.argv)
