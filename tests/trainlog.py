"""A run's records written by hand on a real broker: what the trainer reads, without the stages that would write it.

Called by the tests of trainer/loop. Tokens are derived from numbers, so that two runs hold the same episodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from infra.kafka import ControlReader, make_producer
from schemas import ids
from schemas.common import Record, SamplingSettings, Span, pack_floats, pack_ints
from schemas.design import EnvProposed
from schemas.process import BrokerSettings, ProcessContext
from schemas.recipes import build_recipe
from schemas.rollout import RolloutFinished
from schemas.run import RunStarted
from schemas.settings import Recipe
from schemas.topics import Topic
from schemas.train import AGENT, DESIGNER, BatchReady, Sample
from tests.trainerbatches import save_model
from trainer.logbook import TOPICS

VOCABULARY = 61
SETTINGS = SamplingSettings(temperature=0.9, top_p=0.95, top_k=0)


def save_log_model(folder: Path) -> Path:
    """The model whose vocabulary the tokens are of."""
    return save_model(folder, VOCABULARY, seed=5)


Found = TypeVar("Found", bound=Record)


def recipe_of(model: Path, **overrides: Any) -> Recipe:
    values = {
        "schedule": {"steps": 3, "interval": 1, "delay": 1, "lag": 1, "lead": 1},
        "train": {"learning_rate": 1e-2, "micro_batch_tokens": 64, "batch_deadline_s": 60},
        "model": {"path": str(model)},
        "seed": 3,
    }
    return build_recipe(values, overrides)


class Log:
    """Writes a run's records by hand, the tokens derived from numbers, so that two runs hold the same episodes."""

    def __init__(self, broker: BrokerSettings, run_id: str, recipe: Recipe, state: Path) -> None:
        self.broker, self.run_id, self.recipe = broker, run_id, recipe
        self.context = ProcessContext(broker=broker, run_id=run_id, state_dir=str(state))
        self.producer = make_producer(broker)
        self.producer.send_all([(Topic.RUN_STARTED, self._started(str(state / "policies")))])

    def _started(self, place: str) -> RunStarted:
        return RunStarted(
            run_id=self.run_id,
            event_id=ids.event_id("run-started", self.run_id),
            recipe_json=self.recipe.model_dump_json(),
            recipe_name="test",
            seed=self.recipe.seed,
            steps=self.recipe.schedule.steps,
            policy_place=place,
            code_digest="",
            corpus_digest="",
            tokenizer_digest="",
            dialect="nano",
        )

    def play(self, step: int, index: int) -> RolloutFinished:
        random = np.random.default_rng([step, index])
        length = 12 + 3 * index
        spans = [(4, 7), (8, length)]
        return RolloutFinished(
            run_id=self.run_id,
            event_id=f"play-{step}-{index}",
            play_id=f"play-{step}-{index}",
            unit_id="u",
            env_id=f"env-{index}",
            step=step,
            generation=step,
            arm="plain",
            index=index,
            env_seed=1,
            plays_expected=4,
            tokens=pack_ints(random.integers(0, VOCABULARY, length).tolist()),
            logprobs=pack_floats([-4.1] * length),
            spans=[Span(start=a, end=b, policy_version=0, policy_digest="", settings=SETTINGS) for a, b in spans],
        )

    def design(self, generation: int) -> EnvProposed:
        random = np.random.default_rng([generation, 77])
        span = Span(start=0, end=10, policy_version=0, policy_digest="", settings=SamplingSettings(temperature=0.6))
        return EnvProposed(
            run_id=self.run_id,
            event_id=f"design-{generation}",
            env_id=f"design-{generation}",
            unit_id="u",
            generation=generation,
            slot=0,
            design_attempt=0,
            skill="s",
            document_id="d",
            group="g",
            prompt_tokens=pack_ints(random.integers(0, VOCABULARY, 6).tolist()),
            completion_tokens=pack_ints(random.integers(0, VOCABULARY, 10).tolist()),
            logprobs=pack_floats([-4.0] * 10),
            spans=[span],
        )

    def batch(self, step: int, *, plays: int = 4, design: int = -1, advantage: float = 1.0, drain: bool = False) -> BatchReady:
        """Writes the samples of a batch and gives its record, unsent."""
        records = [(Topic.ROLLOUT_FINISHED, self.play(step, index)) for index in range(plays)]
        found = self.producer.send_all(records)
        samples = [
            Sample(
                reference=reference,
                sample_id=reference.id,
                role=AGENT,
                advantage=advantage * (index - 1.2),
                policy_version=max(0, step - 1),
                lag=min(step, 1),
            )
            for index, reference in enumerate(found)
        ]
        if design >= 0:
            (reference,) = self.producer.send_all([(Topic.ENV_PROPOSED, self.design(design))])
            samples.append(
                Sample(reference=reference, sample_id=reference.id, role=DESIGNER, advantage=0.7, policy_version=0, lag=step)
            )
        return BatchReady(
            run_id=self.run_id,
            event_id=ids.event_id("batch", self.run_id, step),
            step=step,
            generation=-1 if drain else step,
            designer_generation=design,
            samples=samples,
            drain=drain,
        )

    def send(self, *batches: BatchReady) -> None:
        self.producer.send_all([(Topic.BATCH_READY, batch) for batch in batches])

    def whole_run(self) -> None:
        """Batches 0 to 2 and the drain batch 3, written out of order; a second record for 1 must change nothing."""
        batches = [self.batch(step, design=step - 1) for step in range(3)]
        wrong = self.batch(1, advantage=-3.0)
        self.send(batches[0], batches[2], batches[1], wrong, self.batch(3, plays=0, design=2, drain=True))

    def read(self, kind: type[Found]) -> list[Found]:
        with ControlReader(self.broker, TOPICS, self.run_id) as reader:
            return [record for _, _, _, record in reader.catch_up() if isinstance(record, kind)]
