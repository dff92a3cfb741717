"""What one role's tokens gave in a step, added up over micro batches. Called by trainer/engine; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.train import RoleStats
from trainer.loss import TokenLoss, effective_share

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.packing import Trajectory

SUMMED = ("tokens", "drawable", "loss", "correction", "correction_squares", "surprise")


@dataclass
class RoleTally:
    """Sums over the action tokens of one role, in float64."""

    tokens: int = 0
    drawable: int = 0
    loss: float = 0.0
    correction: float = 0.0
    correction_squares: float = 0.0
    surprise: float = 0.0
    log_ratio_max: float = 0.0
    lags: list[int] = field(default_factory=list)

    def add(self, mine: Tensor, weighted: Tensor, terms: TokenLoss, now: Tensor) -> None:
        """Counts the tokens where mine [n] bool holds; `weighted` [n] is their share of the role's loss, now [n] log-probs."""
        correction = terms.correction[mine].double()
        drawable = mine & terms.drawable
        self.tokens += int(mine.sum())
        self.drawable += int(drawable.sum())
        self.loss += float(weighted[mine].double().sum())
        self.correction += float(correction.sum())
        self.correction_squares += float(correction.square().sum())
        self.surprise -= float(now[drawable].double().sum())
        if correction.numel():
            self.log_ratio_max = max(self.log_ratio_max, float(terms.log_ratio[mine].abs().max()))

    def stats(self) -> RoleStats:
        """As the step's record tells it."""
        return RoleStats(
            samples=len(self.lags),
            tokens=self.tokens,
            loss=self.loss,
            ess=effective_share(self.correction, self.correction_squares, self.tokens),
            lag_mean=sum(self.lags) / len(self.lags) if self.lags else 0.0,
            lag_max=max(self.lags, default=0),
            logratio_max=self.log_ratio_max,
            correction_mean=self.correction / self.tokens if self.tokens else 1.0,
            entropy=self.surprise / self.drawable if self.drawable else 0.0,
        )


def open_tallies(trajectories: Sequence[Trajectory]) -> dict[str, RoleTally]:
    """A tally for each role of the batch, with its samples' lags."""
    tallies: dict[str, RoleTally] = {}
    for trajectory in trajectories:
        tallies.setdefault(trajectory.role, RoleTally()).lags.append(trajectory.lag)
    return tallies


def add_up(tallies: dict[str, RoleTally]) -> None:
    """Makes each process's tallies those of the whole batch; lags are already. Called in every process at once."""
    import torch
    from torch import distributed

    ordered = [tallies[role] for role in sorted(tallies)]
    sums = torch.tensor([[getattr(tally, name) for name in SUMMED] for tally in ordered], dtype=torch.float64)
    most = torch.tensor([tally.log_ratio_max for tally in ordered], dtype=torch.float64)
    if not ordered:
        return
    distributed.all_reduce(sums)
    distributed.all_reduce(most, op=distributed.ReduceOp.MAX)
    for tally, row, highest in zip(ordered, sums.tolist(), most.tolist(), strict=True):
        for name, value in zip(SUMMED, row, strict=True):
            setattr(tally, name, type(getattr(tally, name))(value))
        tally.log_ratio_max = highest
