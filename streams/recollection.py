"""What memory gives a generation, waited for in a task that a rebalance cancels: lines for its blocks, environments to probe.

In: the run and the store's address. Out: functions of the stored rows, which are a function of the log.
Called by streams/shell.py for the design stage. Raises StoreError, and StageTimeoutError after the recipe's memory.wait_s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from infra.clickhouse import ClickHouseStore, Store, StoreAwayError, parse_dsn
from infra.memory import rank_candidates, read_lines, wait_for_generation
from infra.runs import Run
from infra.selection import Candidate, choose, choose_probes
from schemas.design import MemoryLine
from streams.schedule import Schedule
from streams.slots import block_skill, count_blocks


@dataclass(frozen=True)
class Recalled:
    """Memory lines for each block, and earlier environments to play again (env_id: generation, the most wanted first)."""

    lines: list[list[MemoryLine]]
    probes: dict[str, int] = field(default_factory=dict)


class Recollection:
    """A connection to the store, made at the first generation that has something to remember."""

    def __init__(self, run: Run, store_dsn: str) -> None:
        self._run = run
        self._dsn = store_dsn
        self._store: ClickHouseStore | None = None

    async def recall(self, generation: int, blocked: frozenset[str] = frozenset()) -> Recalled:
        """What the generation is given; nothing where memory is off or no generation that may be seen has closed yet. `blocked`:
        environments that are neither shown nor probed (the collapse control's), in whose place others are.

        Waits also for a store that is away, or goes away, up to memory.wait_s.
        """
        recipe = self._run.recipe
        newest = Schedule(recipe.schedule).memory_generation(generation)
        if not recipe.memory.enabled or newest is None:
            return Recalled([[] for _ in range(count_blocks(recipe))])
        if self._store is None:
            self._store = ClickHouseStore(parse_dsn(self._dsn))
        end = time.monotonic() + recipe.memory.wait_s
        while True:
            await wait_for_generation(self._store, self._run.run_id, newest, max(end - time.monotonic(), 0.0))
            try:
                return await self._select(self._store, generation, newest, blocked)
            except StoreAwayError:
                if time.monotonic() >= end:
                    raise

    async def _select(self, store: Store, generation: int, newest: int, blocked: frozenset[str]) -> Recalled:
        """What memory up to generation `newest` gives each block: its skill ranked once, its lines drawn for it."""
        run_id, recipe = self._run.run_id, self._run.recipe
        skills = [block_skill(recipe, generation, block) for block in range(count_blocks(recipe))]
        ranked = {
            skill: await rank_candidates(store, run_id, newest, skill, recipe.memory, blocked) for skill in dict.fromkeys(skills)
        }
        chosen = [choose(ranked[skill], recipe.memory, f"{run_id}/{generation}/{block}") for block, skill in enumerate(skills)]
        lines = await self._read(store, chosen, skills)
        # Generations that memory does not know of yet may be playing the first of these: enough for the others.
        most = recipe.memory.probe_environments * recipe.schedule.memory_lag
        return Recalled(lines, choose_probes(ranked.values(), recipe.memory, most))

    async def _read(self, store: Store, chosen: list[list[Candidate]], skills: list[str]) -> list[list[MemoryLine]]:
        """The lines of each block, their texts read once a skill."""
        found: dict[tuple[str, str, str], MemoryLine] = {}
        for skill in dict.fromkeys(skills):
            shown = [one for own, named in zip(chosen, skills, strict=True) if named == skill for one in own]
            lines = await read_lines(store, self._run.run_id, list(dict.fromkeys(shown)), skill, self._run.recipe.memory)
            found |= {(skill, line.env_id, line.kind): line for line in lines}
        return [[found[skill, one.env_id, one.kind] for one in own] for own, skill in zip(chosen, skills, strict=True)]

    async def close(self) -> None:
        """Closes the connections."""
        if self._store is not None:
            await self._store.aclose()
            self._store.close()
