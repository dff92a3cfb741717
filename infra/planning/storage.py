"""Bytes of a run in the log and in the store at the mean length, and the largest record that it can write.

A token costs 8 bytes in a record and in the store (an id, a log-probability), and a play's text about 4 bytes besides. Both are
before compression: zstandard, in the log and on the store's columns, leaves about a third of text and of ids, and most of the
log-probabilities of sampled tokens. Counted are the records that grow with the work; the others are small and few.
"""

from __future__ import annotations

from typing import Final

from infra.planning.memory import WIDTHS
from infra.planning.plan import Plays, Storage
from infra.planning.shapes import ModelShape
from infra.planning.work import probes_a_generation
from schemas.settings import Recipe

TOKEN_BYTES: Final = 8
TEXT_BYTES: Final = 4
SOURCE_BYTES: Final = 32 * 1024  # the gate's bound of an environment's file
MEAN_SOURCE_BYTES: Final = 3 * 1024
HINT_BYTES: Final = 600
WORD_BYTES: Final = 7
RECORD_BYTES: Final = 900  # names, ids, seeds, spans of a short record
SAMPLE_BYTES: Final = 420  # a batch's line: reference, ids, advantage
DAY_S: Final = 86400
CHECKPOINT_WIDTH: Final = 14  # bytes a parameter of a checkpoint and the policy beside it, in bfloat16


def plan_storage(recipe: Recipe, plays: Plays, shape: ModelShape | None, step_s: float, fill: float) -> Storage:
    """A mean step's bytes: its plays, and a generation's designs shared over its steps."""
    interval = recipe.schedule.interval
    a_play = play_bytes(int(recipe.rollout.context_tokens * fill))
    a_design = design_bytes(int(recipe.design_tokens * fill))
    requests = plays.designs_a_generation * (MEAN_SOURCE_BYTES + HINT_BYTES + RECORD_BYTES)
    designs = plays.designs_a_generation * (a_design + request_bytes(recipe, MEAN_SOURCE_BYTES) + 3 * MEAN_SOURCE_BYTES)
    mean_plays = plays.a_generation / interval
    kafka = int(mean_plays * (a_play + SAMPLE_BYTES) + requests + designs / interval)
    store = int(mean_plays * a_play + designs / interval)
    name, largest = largest_record(recipe, plays)
    parameters = shape.parameters if shape else 0
    width = CHECKPOINT_WIDTH if recipe.train.dtype == "bfloat16" else 16
    kept = plays.generations // recipe.train.keep_every if recipe.train.keep_every else 0
    policies = recipe.train.keep_policies + interval + recipe.schedule.lag + recipe.schedule.lead
    return Storage(
        step_s=step_s,
        kafka_a_step=kafka,
        kafka_a_day=int(kafka * DAY_S / step_s),
        clickhouse_a_day=int(store * DAY_S / step_s),
        kafka_in_all=kafka * plays.steps,
        largest_record=largest,
        largest_record_name=name,
        policies_bytes=parameters * (policies * WIDTHS[recipe.train.dtype][0] + (2 + kept) * width),
    )


def play_bytes(tokens: int) -> int:
    """A finished play's record."""
    return RECORD_BYTES + tokens * (TOKEN_BYTES + TEXT_BYTES)


def design_bytes(tokens: int) -> int:
    """A proposed design's record: prompt ids are not counted, the source is what the completion decodes to."""
    return RECORD_BYTES + tokens * (TOKEN_BYTES + TEXT_BYTES)


def request_bytes(recipe: Recipe, source_bytes: int) -> int:
    """A slot in a design request: its document and its memory lines in full."""
    document = recipe.corpus.max_words * WORD_BYTES if recipe.reads_corpus else 0
    blocked = recipe.collapse.blocked if recipe.collapse.enabled else 0
    lines = recipe.memory.seeds + len(recipe.memory.negatives) + blocked if recipe.memory.enabled else 0
    return RECORD_BYTES + document + lines * (source_bytes + HINT_BYTES)


def largest_record(recipe: Recipe, plays: Plays) -> tuple[str, int]:
    """The kind of record that can get largest, and how large, every source being as long as the gate allows."""
    environments = plays.designs_a_generation
    played = environments + probes_a_generation(recipe)
    a_unit = -(-played // min(recipe.rollout.units, played))
    slots = -(-environments // min(recipe.design.units, environments))
    sizes = {
        "rollout-finished": play_bytes(recipe.rollout.context_tokens),
        "env-proposed": design_bytes(recipe.design_tokens),
        "rollout-requested": a_unit * (SOURCE_BYTES + HINT_BYTES + RECORD_BYTES)
        + RECORD_BYTES * -(-plays.first_step // min(recipe.rollout.units, environments)) // 3,
        "design-requested": slots * request_bytes(recipe, SOURCE_BYTES),
        "slots-closed": played * (SOURCE_BYTES + HINT_BYTES + RECORD_BYTES),
        "batch-ready": SAMPLE_BYTES * (plays.agent_batch_most + plays.designer_batch_most),
    }
    name = max(sizes, key=lambda kind: sizes[kind])
    return name, sizes[name]
