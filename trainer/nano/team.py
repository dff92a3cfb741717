"""A team of processes that train one model together: each has all weights, a part of every batch, and the sum of all gradients.

Why processes: a model this small gains nothing from more torch threads (its products are too small to share out), while two
processes on two cores do a step in little more than half the time. In: a function of a team. Out: what it does in the first
process. Called by the build. Over gloo on the loopback interface; the sum is the same in every process and in every run.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from schemas.errors import ModelError

PATIENCE: Final = timedelta(seconds=120)
"""Longest wait for another process in a step; one that is gone is noticed at once."""


@dataclass(frozen=True)
class Team:
    """This process's place among `size` processes; a team of one needs nothing."""

    rank: int = 0
    size: int = 1

    def add_gradients(self, model: Any, loss: float) -> float:
        """Replaces every gradient by the sum over the team, and gives the summed loss. Every process calls it for each step."""
        import torch

        if self.size == 1:
            return loss
        # whoever had no sample in this batch has no gradient of its own
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        flat = torch.cat([torch.tensor([loss]), *[gradient.reshape(-1) for gradient in gradients]])
        try:
            torch.distributed.all_reduce(flat)
        except RuntimeError as error:
            raise ModelError("another process of the build is gone", "Run `spade nano build` again") from error
        start = 1
        for parameter in parameters:
            size = parameter.numel()
            parameter.grad = flat[start : start + size].view_as(parameter)
            start += size
        return float(flat[0])


def train_together(size: int, work: Callable[..., None], *arguments: Any) -> None:
    """Runs `work(team, *arguments)` in `size` processes, this one the first. Blocks; raises what `work` raises here.

    `work` and its arguments have to be picklable (a module's function, paths, numbers).
    """
    if size == 1:
        work(Team(), *arguments)
        return
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="spade-nano-") as folder:
        meeting = str(Path(folder, "meeting"))
        teams = [Team(rank, size) for rank in range(1, size)]
        others = [context.Process(target=_join, args=(team, meeting, work, *arguments), daemon=True) for team in teams]
        for process in others:
            process.start()
        try:
            _join(Team(0, size), meeting, work, *arguments)
        finally:
            for process in others:
                process.join(5.0)
                process.kill()
                process.join()


def _join(team: Team, meeting: str, work: Callable[..., None], *arguments: Any) -> None:
    """Meets the others in a file, works, and parts."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=team.rank, world_size=team.size, timeout=PATIENCE
    )
    try:
        work(team, *arguments)
    finally:
        torch.distributed.destroy_process_group()
