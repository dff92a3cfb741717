"""Which samples of a batch each process of the trainer takes: by length, the same answer in every process.

In: the samples' lengths, how many processes. Out: positions a process. Called by trainer/packing; pure. Sorted by falling length
each goes to the process with the fewest tokens so far, so that the longest plays do not meet in one. What a process gets
decides no result beyond rounding: weights of the loss are those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence


def share_out(lengths: Sequence[int], positions: Sequence[int], world: int) -> list[list[int]]:
    """`positions` (into `lengths`) for each of `world` processes."""
    shares: list[list[int]] = [[] for _ in range(world)]
    loads = [0] * world
    for position in sorted(positions, key=lambda p: (-lengths[p], p)):
        rank = min(range(world), key=lambda r: (loads[r], r))
        shares[rank].append(position)
        loads[rank] += lengths[position]
    return shares


def fill_up(groups: Sequence[Sequence[list[int]]], rank: int) -> list[list[int]]:
    """The groups of one process, and empty ones until it has as many as the others: collectives need equal numbers of passes."""
    rounds = max((len(mine) for mine in groups), default=0)
    return [*groups[rank], *([] for _ in range(rounds - len(groups[rank])))]
