"""What each stage reads: inputs of its group, control topics from the run's start, own outputs that are work topics.

Called by streams/shell.py. A stage by run is one run's single owner: it works only while the run's partition is assigned to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from infra.runs import Run
from schemas.settings import Recipe
from schemas.topics import Topic
from streams.stage import Join, Stage


@dataclass(frozen=True)
class StageSpec:
    """One row of the table of stages."""

    inputs: tuple[Topic, ...]
    control: tuple[Topic, ...]  # run topics, own outputs among them
    own_work: tuple[Topic, ...]
    by_run: bool
    make_join: Callable[[Run], Join]
    free_control: tuple[Topic, ...] = ()  # besides, where the schedule is free

    def control_topics(self, recipe: Recipe) -> tuple[Topic, ...]:
        """The run topics that the stage reads from the run's start."""
        return self.control + (self.free_control if recipe.schedule.kind == "free" else ())


def _design(run: Run) -> Join:
    from infra.corpus.pool import recipe_documents
    from infra.runs import find_folder
    from streams.design import DesignJoin
    from streams.slots import cut_document

    corpus = run.recipe.corpus
    documents = recipe_documents(run.recipe, find_folder(corpus.path))
    if not run.recipe.is_pooled:
        documents = [cut_document(document, corpus.max_words) for document in documents]
    return DesignJoin(run.run_id, run.recipe, documents)


def _rollout(run: Run) -> Join:
    from streams.freerollout import FreeRolloutJoin
    from streams.rollout import RolloutJoin

    kind = FreeRolloutJoin if run.recipe.schedule.kind == "free" else RolloutJoin
    return kind(run.run_id, run.recipe)


def _score(run: Run) -> Join:
    from streams.score import ScoreJoin

    return ScoreJoin(run.run_id, run.recipe)


def _batch(run: Run) -> Join:
    from streams.batch import BatchJoin
    from streams.diversity import similarity_kernel
    from streams.freebatch import FreeBatchJoin

    similarity_kernel(["warm"])  # scikit-learn takes seconds to import: here, in a thread, not when the first generation closes
    kind = FreeBatchJoin if run.recipe.schedule.kind == "free" else BatchJoin
    return kind(run.run_id, run.recipe)


SPECS: dict[Stage, StageSpec] = {
    Stage.DESIGN: StageSpec(
        (Topic.ENV_VALIDATED, Topic.ENV_REJECTED),
        (Topic.RUN_ENDING, Topic.SLOTS_CLOSED, Topic.ENV_VALIDATED, Topic.POLICY_PUBLISHED, Topic.GENERATION_CLOSED),
        (Topic.DESIGN_REQUESTED,),
        True,
        _design,
    ),
    Stage.ROLLOUT: StageSpec(
        (Topic.SLOTS_CLOSED,),
        (Topic.RUN_ENDING, Topic.POLICY_PUBLISHED, Topic.ENV_SCORED),
        (Topic.ROLLOUT_REQUESTED,),
        True,
        _rollout,
        (Topic.SLOTS_CLOSED,),
    ),
    Stage.SCORE: StageSpec(
        (Topic.ROLLOUT_FINISHED, Topic.AUDIT_FINISHED),
        (Topic.SLOTS_CLOSED, Topic.ENV_SCORED),
        (Topic.AUDIT_REQUESTED,),
        False,
        _score,
    ),
    Stage.BATCH: StageSpec(
        (Topic.ENV_SCORED,),
        (Topic.RUN_ENDING, Topic.SLOTS_CLOSED, Topic.GENERATION_CLOSED, Topic.BATCH_READY),
        (),
        True,
        _batch,
        (Topic.ENV_SCORED,),
    ),
}
