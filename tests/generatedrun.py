"""A whole run's records, made up: what the dashboards, Grafana's queries and `spade status` are tested on.

In: a run id, and how far it is. Out: (topic, record) pairs as the system would have written them, and `fill`, which brings them
into a store as the memory sink does. Numbers are smooth and known, texts are hostile.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from typing import Any

from infra.clickhouse import Store
from schemas.common import Record, Reference, SamplingSettings, Span, pack_ints
from schemas.design import (
    DesignRequested,
    DesignSlot,
    Document,
    EnvProposed,
    EnvRejected,
    EnvValidated,
    Member,
    MemoryLine,
    RuleProof,
    SlotsClosed,
)
from schemas.rollout import RolloutFinished, Turn
from schemas.run import RunFinished, RunStarted
from schemas.score import ArmScore, EnvScored, GenerationClosed, PlayReturn, ScoredDesign
from schemas.topics import Topic
from schemas.train import BatchReady, Canary, EvalFinished, PolicyPublished, RoleStats, Sample, StepFinished
from workers.memory_rows import blocks_of, rows_of

Pairs = list[tuple[Topic, Record]]
MEMBERS = 6
REFUSED = (("parse", "0 hint marks where one is due"), ("witness", "solution: env_error: NameError"))
HOSTILE = '<img src=x onerror="window.pwned=1"></pre><script>window.pwned=1</script> \u202egnirts\u202c \x1b[31m & "quoted"'
SOURCE = f'''class SumEnv(Env):
    """{HOSTILE}"""

    def reset(self, seed):
        self.a, self.b = seed % 7, seed % 11
        return f"What is {{self.a}} + {{self.b}}?"
'''
HINT = f"Add them one by one. {HOSTILE}"


class GeneratedRun:
    """`generations` closed ones with a step each, then a finished run where `finished`."""

    def __init__(self, run_id: str, generations: int = 6, *, finished: bool = False, begun: float | None = None) -> None:
        self.run_id = run_id
        self.generations = generations
        self.begun = time.time() - 60 * generations if begun is None else begun
        self.pairs: Pairs = []
        recipe = {"schedule": {"interval": 1, "lag": 1, "lead": 1, "delay": 1, "steps": generations}, "name": "generated"}
        self._add(
            Topic.RUN_STARTED, RunStarted, 0, recipe_json=json.dumps(recipe), recipe_name="generated", seed=1, steps=generations,
            policy_place="", code_digest="", corpus_digest="", tokenizer_digest="", dialect="nano",
        )  # fmt: skip
        self._policy(0)
        for generation in range(generations):
            self.add_generation(generation)
        if finished:
            self._add(
                Topic.RUN_FINISHED, RunFinished, 60 * generations, steps=generations, drain_steps=0, final_version=generations,
                final_digest="d", agent_samples=1, designer_samples=1, cause="all steps are trained",
            )  # fmt: skip

    @staticmethod
    def win_rate(generation: int) -> float:
        """Of the plain arm, mean over a generation's members."""
        return round(0.3 + 0.04 * generation, 4)

    def env_id(self, generation: int, slot: int) -> str:
        """An id that tells its place."""
        return f"{generation:04d}{slot:04d}-{self.run_id}"

    def add_generation(self, generation: int) -> None:
        """Designs, verdicts, plays, scores, the closing, the step and the policy of one generation."""
        self._designs(generation)
        self._plays(generation)
        self._closing(generation)
        self._step(generation)
        self._policy(generation + 1)

    def fill(self, store: Store) -> None:
        """Inserts every record's rows; can be repeated after more records were added."""
        offsets: dict[Topic, int] = defaultdict(int)
        rows: dict[Topic, list[tuple[str, dict[str, object]]]] = defaultdict(list)
        for topic, record in self.pairs:
            rows[topic] += rows_of(topic, record, 0, offsets[topic])
            offsets[topic] += 1
        for topic, own in rows.items():
            for block in blocks_of(self.run_id, topic, 0, 0, offsets[topic] - 1, own):
                store.insert(block.table, block.columns, block.values, token=block.token)

    def _add(self, topic: Topic, kind: type[Record], after_s: float, **fields: Any) -> None:
        number = len(self.pairs)
        record = kind(run_id=self.run_id, event_id=f"{self.run_id}-{number}", created_at=self.begun + after_s, **fields)
        self.pairs.append((topic, record))

    def _designs(self, generation: int) -> None:
        start = 60.0 * generation
        slots = [self._slot(generation, slot) for slot in range(MEMBERS + len(REFUSED))]
        unit = f"design-{generation}"
        self._add(
            Topic.DESIGN_REQUESTED, DesignRequested, start, unit_id=unit, generation=generation, design_attempt=0,
            policy_version=max(generation - 2, 0), settings=SamplingSettings(), slots=slots,
        )  # fmt: skip
        for slot in slots:
            after = start + 1 + slot.slot
            common = {
                "env_id": slot.env_id, "generation": generation, "slot": slot.slot, "design_attempt": 0, "skill": slot.skill,
                "document_id": slot.document.document_id, "group": slot.group, "source": SOURCE, "hint": HINT,
            }  # fmt: skip
            self._add(
                Topic.ENV_PROPOSED, EnvProposed, after, unit_id=unit, completion_tokens=pack_ints([1] * 40),
                spans=[self._span(40, generation - 2)],
                stop_reason="stop", **common,
            )  # fmt: skip
            judged = {**common, "proposal": self._place(Topic.ENV_PROPOSED, slot.env_id), "gate_cpu_s": 0.2, "gate_wall_s": 0.4}
            if slot.slot < MEMBERS:
                self._add(
                    Topic.ENV_VALIDATED, EnvValidated, after + 1, full_source=SOURCE, source_digest=slot.env_id, signature=[1],
                    proof=[RuleProof(rule="witness", passed=True, evidence=f"8 of 8 seeds won {HOSTILE}")],
                    witness_min_return=1.0, witness_mean_return=1.0, reward_min=0.0, **judged,
                )  # fmt: skip
            else:
                rule, evidence = REFUSED[slot.slot - MEMBERS]
                self._add(Topic.ENV_REJECTED, EnvRejected, after + 1, rule=rule, evidence=f"{evidence} {HOSTILE}", **judged)
        self._add(
            Topic.SLOTS_CLOSED, SlotsClosed, start + 12, generation=generation, policy_version=max(generation - 2, 0),
            members=[self._member(generation, slot) for slot in slots[:MEMBERS]], proposed=len(slots),
            rejected_by_rule={rule: 1 for rule, _ in REFUSED},
        )  # fmt: skip

    def _slot(self, generation: int, slot: int) -> DesignSlot:
        shown = []
        if generation:
            parent = self.env_id(generation - 1, slot % MEMBERS)
            shown = [MemoryLine(env_id=parent, kind="best", skill="sums", source=SOURCE, hint=HINT, win_rate=0.5, regret=0.1)]
        return DesignSlot(
            slot=slot, design_attempt=0, env_id=self.env_id(generation, slot), skill="sums" if slot % 2 else "words",
            document=Document(document_id="doc", title=f"On sums {HOSTILE}", text=f"Sums are old. {HOSTILE}"), group="doc",
            memory=shown, sampling_seed=slot,
        )  # fmt: skip

    def _member(self, generation: int, slot: DesignSlot) -> Member:
        return Member(
            env_id=slot.env_id, slot=slot.slot, design_attempt=0, skill=slot.skill, document_id="doc", group="doc", source=SOURCE,
            hint=HINT, proposal=self._place(Topic.ENV_PROPOSED, slot.env_id), source_digest=slot.env_id, witness_min_return=1.0,
            reward_min=0.0,
        )  # fmt: skip

    @staticmethod
    def _place(topic: Topic, record_id: str) -> Reference:
        return Reference(topic=topic.wire, partition=0, offset=0, id=record_id)

    @staticmethod
    def _span(end: int, version: int) -> Span:
        return Span(start=0, end=end, policy_version=max(version, 0), policy_digest="d", settings=SamplingSettings())

    def _plays(self, generation: int) -> None:
        for slot in range(MEMBERS):
            env_id = self.env_id(generation, slot)
            arms = []
            for arm, gain in (("plain", 0.0), ("hint", 0.1)):
                plays = []
                for index in range(2):
                    play_id = f"{arm}-{index}-{env_id}"
                    won = (index + slot) % 2 == 0
                    turns = [
                        Turn(
                            observation=f"What is 1 + 1? {HOSTILE}",
                            action=f"2 {HOSTILE}",
                            reward=0.0,
                            action_start=0,
                            action_end=4,
                        )
                    ]
                    self._add(
                        Topic.ROLLOUT_FINISHED, RolloutFinished, 60.0 * generation + 20 + 2 * slot + index, play_id=play_id,
                        unit_id=f"play-{generation}", env_id=env_id, step=generation, generation=generation, arm=arm, index=index,
                        env_seed=index, plays_expected=4, turns=turns, final_observation=f"Done {HOSTILE}", terminated=True,
                        episode_return=float(won), won=won, end_reason="terminated", tokens=pack_ints([1] * 9),
                        spans=[self._span(4, generation - 1)],
                    )  # fmt: skip
                    place = self._place(Topic.ROLLOUT_FINISHED, play_id)
                    plays.append(PlayReturn(play_id=play_id, index=index, episode_return=float(won), won=won, reference=place))
                rate = min(self.win_rate(generation) + gain, 1.0)
                arms.append(ArmScore(arm=arm, plays=plays, mean=rate, win_rate=rate))
            self._add(
                Topic.ENV_SCORED, EnvScored, 60.0 * generation + 35 + slot, env_id=env_id, step=generation, generation=generation,
                arms=arms, pairs=2, regret=0.1, regret_se=0.05,
            )  # fmt: skip

    def _closing(self, generation: int) -> None:
        rate = self.win_rate(generation)
        designs = [
            ScoredDesign(
                env_id=self.env_id(generation, slot), slot=slot, design_attempt=0, skill="sums", document_id="doc", group="doc",
                proposal=self._place(Topic.ENV_PROPOSED, ""), valid=slot < MEMBERS, w=rate, win_rate=round(0.05 + 0.18 * slot, 2),
                hint_win_rate=0.6, regret=0.1, regret_se=0.05, reward=0.5 if slot < MEMBERS else 0.0, advantage=0.1, trained=True,
                repeated=0.9 if slot == 1 else 0.2,
            )
            for slot in range(MEMBERS + len(REFUSED))
        ]  # fmt: skip
        self._add(
            Topic.GENERATION_CLOSED, GenerationClosed, 60.0 * generation + 45, generation=generation, designs=designs,
            proposed=len(designs), valid=MEMBERS, rejected_by_rule={rule: 1 for rule, _ in REFUSED}, missing=0, duplicates=0,
            win_rate=rate, hint_win_rate=rate + 0.1, regret=round(0.1 * math.cos(generation / 3), 4), regret_se=0.04,
            designer_reward=0.5, repeats=0.1, vendi=0.8, lost=0,
        )  # fmt: skip

    def _step(self, generation: int) -> None:
        env_id = self.env_id(generation, 0)
        samples = [
            Sample(
                reference=self._place(Topic.ENV_PROPOSED, ""), sample_id=name, role=role, advantage=0.1, policy_version=0, lag=1
            )
            for name, role in ((f"plain-0-{env_id}", "agent"), (env_id, "designer"))
        ]
        self._add(
            Topic.BATCH_READY, BatchReady, 60.0 * generation + 46, step=generation, generation=generation,
            designer_generation=generation, samples=samples,
        )  # fmt: skip
        self._add(
            Topic.STEP_FINISHED, StepFinished, 60.0 * generation + 50, step=generation, drain=False, loss=0.1,
            roles={
                "agent": RoleStats(samples=24, tokens=100, loss=0.1, ess=0.97, lag_mean=1.0, lag_max=min(generation, 1)),
                "designer": RoleStats(samples=8, tokens=320, loss=0.2, ess=0.9, lag_mean=2.0, lag_max=min(generation, 3)),
            },
            trained=[sample.sample_id for sample in samples], seconds={"forward": 1.0, "backward": 2.0},
        )  # fmt: skip

    def _policy(self, version: int) -> None:
        self._add(
            Topic.POLICY_PUBLISHED, PolicyPublished, max(60.0 * version - 9, 0.5), version=version,
            digest=f"d{version}", place="", canary=Canary(tokens=b"", logprobs=b""),
        )  # fmt: skip
        if version % 3 == 0:
            self._add(
                Topic.EVAL_FINISHED, EvalFinished, 60.0 * version, suite="nano", policy_version=version, policy_digest="d",
                items=10, won=bytes([1] * min(3 + version, 10) + [0] * max(7 - version, 0)), win_rate=min(3 + version, 10) / 10,
            )  # fmt: skip
