"""The pools of an ablation: each made once, by a child, before the arms that draw from it.

In: the pools that are wanted. Out: their folders, and the digest of each pool's content. Called by infra.cli.ablating. A smaller
pool of one maker is the beginning of the largest, which alone is made. Raises AblationError, StageTimeoutError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infra.ablation.arms import Pool, pool_folder
from infra.ablation.results import digest_of, recipe_keys
from infra.cli.children import Child, run_children
from infra.corpus import corpus_digest
from infra.corpus.pool import SUFFIXES
from infra.durable import write_whole
from infra.policystore import files_digest, policy_files
from infra.runs import find_folder
from schemas.settings import Recipe

if TYPE_CHECKING:
    from infra.cli.ablating import Order


def pools_place(folder: Path, base: Recipe) -> Path:
    """Where the pools of a recipe and model stand below an ablation's folder: another one's are never taken for them."""
    model = find_folder(base.model.path)
    deciding = recipe_keys(base) | {"model.digest": files_digest(model, policy_files(model))}
    return folder / "pools" / digest_of(deciding)[:12]


def make_pools(base: Recipe, wanted: Sequence[Pool], order: Order, say: Callable[[str], None]) -> dict[Pool, str]:
    """Makes those that are not there; pool -> digest of its content."""
    from infra.cli.poolmaking import POOL_FILE

    places = pools_place(order.folder, base)
    for maker in dict.fromkeys(pool.maker for pool in wanted):
        own = sorted({pool for pool in wanted if pool.maker == maker}, key=lambda pool: -pool.count(base))
        largest = pool_folder(places, own[0], base)
        if not (largest / POOL_FILE).exists():
            size = 0 if maker == "levels" else own[0].count(base)
            say(f"making the pool of the {maker}, {size or 'all'} environments, in {largest} ...")
            sets = [part for pair in order.pairs for part in ("--set", pair)]
            arguments = [
                "pool", "make", "--by", maker, "--size", str(size), "--to", str(largest), "--recipe", order.recipe, *sets,
            ]  # fmt: skip
            log = order.folder / "logs" / f"pool-{largest.name}.log"
            run_children([Child(arguments, log, f"pool {largest.name}")], order.limit_s, say)
        lines = (largest / POOL_FILE).read_bytes().splitlines(keepends=True)
        for pool in own[1:]:
            smaller = pool_folder(places, pool, base) / POOL_FILE
            if not smaller.exists():  # a run may have begun with it
                smaller.parent.mkdir(parents=True, exist_ok=True)
                write_whole(smaller, b"".join(lines[: pool.count(base)]))
    return {pool: corpus_digest(pool_folder(places, pool, base), SUFFIXES) for pool in wanted}
