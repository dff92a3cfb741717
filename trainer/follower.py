"""`python -m trainer.follower RANK WORLD PORT DEADLINE_S`: one further process of the trainer, which does what rank 0 tells it.

In: orders. Out: its part of each step, and of the state that is gathered. Started by trainer/team on the same machine, whose end
ends it; it reads no log and writes nothing. An error is its last line, which rank 0 quotes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from infra.telemetry import get_logger, setup_logging
from schemas.errors import SpadeError
from schemas.settings import TrainSettings


def main(arguments: list[str]) -> int:
    """Joins the group and works until told to leave; the exit code."""
    rank, world, port = (int(value) for value in arguments[:3])
    setup_logging(f"train-rank-{rank}")
    try:
        _work(rank, world, port, float(arguments[3]))
    except SpadeError as problem:
        print(f"error: {problem}", file=sys.stderr, flush=True)  # noqa: T201  # the line that rank 0 quotes
        return problem.exit_code
    return 0


def _work(rank: int, world: int, port: int, deadline_s: float) -> None:
    from trainer import orders
    from trainer.engine import TrainEngine
    from trainer.shards import FromLead, Outlines
    from trainer.team import join

    line = join(rank, world, port, deadline_s)
    engine: TrainEngine | None = None
    get_logger(__name__).info("follows rank 0", rank=rank, world=world)
    while True:
        order = line.take()
        if isinstance(order, orders.End):
            return
        if isinstance(order, orders.Open):
            settings = TrainSettings.model_validate_json(order.settings_json)
            engine = TrainEngine(Path(order.folder), settings, order.seed, Path(order.reference))
            continue
        assert engine is not None, "rank 0 opens an engine first"
        match order:
            case orders.Train():
                engine.train(orders.off_wire(order.trajectories), order.table)
            case orders.Load():
                engine.load_state(FromLead(Outlines(order.outlines)))
            case orders.Canary():
                engine.canary(order.tokens)
            case orders.State():
                engine.state()
            case orders.Weights():
                engine.weights()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
