"""The memory lines of a generation's blocks, waited for in a task that a rebalance cancels.

In: the run and the store's address. Out: lines by block, a function of the stored rows, which are a function of the log.
Called by streams/shell.py for the design stage. Raises StoreError, and StageTimeoutError after the recipe's memory.wait_s.
"""

from __future__ import annotations

import time

from infra.clickhouse import ClickHouseStore, StoreAwayError, parse_dsn
from infra.memory import Candidate, choose_lines, load_candidates, wait_for_generation
from infra.runs import Run
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
        """Lines for each block of the generation; all empty where memory is off or nothing has closed yet."""
        recipe = self._run.recipe
        blocks = range(count_blocks(recipe))
        newest = Schedule(recipe.schedule).memory_generation(generation)
        if not recipe.memory.enabled or newest is None:
            return [[] for _ in blocks]
        if self._store is None:
            self._store = ClickHouseStore(parse_dsn(self._dsn))
        candidates = await self._candidates(newest)
        return [
            choose_lines(
                candidates,
                block_skill(recipe, generation, block),
                recipe.memory,
                f"{self._run.run_id}/{generation}/{block}",
            )
            for block in blocks
        ]

    async def _candidates(self, newest: int) -> list[Candidate]:
        """What memory holds up to the generation; waits also for a store that is away, or goes away, up to memory.wait_s."""
        assert self._store is not None
        settings = self._run.recipe.memory
        end = time.monotonic() + settings.wait_s
        while True:
            await wait_for_generation(self._store, self._run.run_id, newest, max(end - time.monotonic(), 0.0))
            try:
                return await load_candidates(self._store, self._run.run_id, newest, settings)
            except StoreAwayError:
                if time.monotonic() >= end:
                    raise

    async def close(self) -> None:
        """Closes the connections."""
        if self._store is not None:
            await self._store.aclose()
            self._store.close()
