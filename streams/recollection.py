"""The memory lines of a generation's blocks, waited for in a task that a rebalance cancels.

In: the run and the store's address. Out: lines by block, a function of the stored rows, which are a function of the log.
Called by streams/shell.py for the design stage. Raises StoreError, and StageTimeoutError after the recipe's memory.wait_s.
"""

from __future__ import annotations

import time

from infra.clickhouse import ClickHouseStore, Store, StoreAwayError, parse_dsn
from infra.memory import rank_candidates, read_lines, wait_for_generation
from infra.runs import Run
from infra.selection import choose
from schemas.design import MemoryLine
from streams.schedule import Schedule
from streams.slots import block_skill, count_blocks


class Recollection:
    """A connection to the store, made at the first generation that has something to remember."""

    def __init__(self, run: Run, store_dsn: str) -> None:
        self._run = run
        self._dsn = store_dsn
        self._store: ClickHouseStore | None = None

    async def lines(self, generation: int) -> list[list[MemoryLine]]:
        """Lines for each block of the generation; all empty where memory is off or nothing has closed yet.

        Waits also for a store that is away, or goes away, up to memory.wait_s.
        """
        recipe = self._run.recipe
        newest = Schedule(recipe.schedule).memory_generation(generation)
        if not recipe.memory.enabled or newest is None:
            return [[] for _ in range(count_blocks(recipe))]
        if self._store is None:
            self._store = ClickHouseStore(parse_dsn(self._dsn))
        end = time.monotonic() + recipe.memory.wait_s
        while True:
            await wait_for_generation(self._store, self._run.run_id, newest, max(end - time.monotonic(), 0.0))
            try:
                return await self._select(self._store, generation, newest)
            except StoreAwayError:
                if time.monotonic() >= end:
                    raise

    async def _select(self, store: Store, generation: int, newest: int) -> list[list[MemoryLine]]:
        """What memory up to generation `newest` gives each block: its skill ranked once, its lines drawn for it."""
        run_id, recipe = self._run.run_id, self._run.recipe
        skills = [block_skill(recipe, generation, block) for block in range(count_blocks(recipe))]
        ranked = {skill: await rank_candidates(store, run_id, newest, skill, recipe.memory) for skill in dict.fromkeys(skills)}
        chosen = [choose(ranked[skill], recipe.memory, f"{run_id}/{generation}/{block}") for block, skill in enumerate(skills)]
        return [await read_lines(store, run_id, own, skill, recipe.memory) for own, skill in zip(chosen, skills, strict=True)]

    async def close(self) -> None:
        """Closes the connections."""
        if self._store is not None:
            await self._store.aclose()
            self._store.close()
