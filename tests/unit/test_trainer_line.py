"""The line between two real processes of the trainer, without a model: orders, pieces put together, states handed on."""

from __future__ import annotations

import json
import subprocess
import sys

LEAD = """
import json, socket, subprocess, sys
import torch
from torch.distributed import TCPStore
from trainer import orders
from trainer.shards import FromLead, Outlines, Shard, gather, outline, put_back
from trainer.team import join

rank = int(sys.argv[1])
if rank == 0:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    other = subprocess.Popen([sys.executable, "-c", sys.argv[2], "1", "", str(port)])
    line = join(0, 2, port, 500.0, TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False,
                                           master_listen_fd=listening.detach()))
else:
    line = join(1, 2, int(sys.argv[3]), 500.0)

class Wrapped:  # what DeepSpeed's optimizer has: torch's own below
    def __init__(self):
        self.flat = torch.nn.Parameter(torch.tensor([-0.0, float("nan"), 1e-45]) if rank == 0 else torch.tensor([3.0, 0.0, 0.0]))
        self.optimizer = torch.optim.AdamW([self.flat])

def shards(wrapped):
    first = Shard("a", torch.Size([2]), wrapped.flat if rank == 0 else None, 0, 0, 2 if rank == 0 else 0)
    second = Shard("b", torch.Size([2]), wrapped.flat, 2 if rank == 0 else 0, 0 if rank == 0 else 1, 1)
    return [first, second]

wrapped = Wrapped()
wrapped.flat.grad = torch.ones(3)
if rank == 0:
    line.give(orders.Canary(list(range(100000))))
    line.give(orders.End())
else:
    first, second = line.take(), line.take()
    assert isinstance(first, orders.Canary) and first.tokens[-1] == 99999 and isinstance(second, orders.End)
before = wrapped.flat.detach().clone()
state = dict(gather(shards(wrapped), wrapped, masters=True))
if rank == 0:
    assert state["master/a"].view(torch.int32).tolist() == before[:2].view(torch.int32).tolist(), "not a bit is lost"
    assert state["master/b"].tolist() == [float(before[2]), 3.0]
assert not any(name.startswith("step") for name in state)
wrapped.flat.data = torch.arange(3.0) + 10 * rank
wrapped.optimizer.step()
state = dict(gather(shards(wrapped), wrapped, masters=True))
fresh = Wrapped()
known = state if rank == 0 else Outlines(outline(state))
put_back(shards(fresh), fresh, FromLead(known), "weight")
used = 3 if rank == 0 else 1
assert torch.equal(fresh.flat[:used], wrapped.flat[:used])
for key in ("exp_avg", "exp_avg_sq"):
    assert torch.equal(fresh.optimizer.state[fresh.flat][key][:used], wrapped.optimizer.state[wrapped.flat][key][:used])
assert fresh.optimizer.state[fresh.flat]["step"] == 1
if rank == 0:
    assert other.wait() == 0
    print(json.dumps({name: tensor.tolist() for name, tensor in state.items() if name.startswith("master")}))
"""


def test_orders_and_pieces_go_between_two_processes_without_losing_a_bit() -> None:
    done = subprocess.run([sys.executable, "-c", LEAD, "0", LEAD], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [round(value, 2) for value in found["master/b"]] == [2.0, 10.0]
