"""What a play's jail is told: the play text, seeds and actions; neither the hint nor the solution nor what the witness did."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from schemas.common import Reference, SamplingSettings
from schemas.rollout import HINTED, PLAIN, Play, PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.settings import RolloutSettings
from tests.fakes.dialect import EOS, LetterDialect, encode
from tests.fakes.sampler import HashSampler
from workers.gate.static import cut_solution
from workers.rollout import RolloutWork
from workers.samplers.base import SampleRequest, SampleResult
from workers.sandbox import Sandbox, frames, open_sandbox

pytestmark = pytest.mark.integration

HINT = "multiply by nine hundred and seven"
SOURCE = """
import random

class ProductEnv:
    def __init__(self, max_turns=25):
        self.left = max_turns
    def reset(self, seed=None):
        self.number = random.Random(seed).randrange(10 ** 6, 10 ** 7)
        return f"number {self.number}", {}
    def step(self, action):
        self.left -= 1
        won = action.isascii() and action.isdecimal() and len(action) < 20 and int(action) == self.number * 907
        return "over" if won else "go on", float(won), won, self.left <= 0, {}
    def solution(self):
        return [str(self.number * 907)]
"""


class WritingSampler(HashSampler):
    """Acts with a fixed word; keeps the prompts."""

    def __init__(self) -> None:
        super().__init__(context_tokens=2000)
        self.prompts: list[str] = []

    def complete(self, request: SampleRequest) -> SampleResult:
        self.prompts.append("".join(map(chr, request.prompt)))
        tokens = [*encode("perhaps"), EOS]
        return SampleResult(tokens, [-0.5] * len(tokens), "stop")


class AnyPolicy:
    """A feed that always holds the policy that is asked for."""

    def hold(self, version: int, *, newest: bool = False) -> None:
        """Holds all."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    opened = open_sandbox("zygote")
    yield opened
    opened.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every byte that goes from here to a launcher or a jail: frames, and datagrams with descriptors."""
    kept: list[bytes] = []
    send, send_fds = frames.Channel.send, socket.send_fds

    def keep_frame(self: frames.Channel, frame: bytes, timeout_s: float) -> None:
        kept.append(frame)
        send(self, frame, timeout_s)

    def keep_datagram(sock: socket.socket, buffers: list[bytes], *rest: Any) -> int:
        kept.extend(buffers)
        return send_fds(sock, buffers, *rest)

    monkeypatch.setattr(frames.Channel, "send", keep_frame)
    monkeypatch.setattr(socket, "send_fds", keep_datagram)
    return kept


def play_both_arms(sandbox: Sandbox) -> tuple[list[RolloutFinished], WritingSampler]:
    """Two seeds in each arm by the rollout worker's own code."""
    environment = PlayEnvironment(env_id="e", source=cut_solution(SOURCE), hint=HINT, witness_min_return=1.0, reward_min=0.0)
    plays = [
        Play(play_id=f"{arm}-{seed}", env_id="e", arm=arm, index=seed, env_seed=seed, sampling_seed=seed)
        for arm in (PLAIN, HINTED)
        for seed in (1, 2)
    ]
    request = RolloutRequested(
        run_id="r", event_id="u", unit_id="u", step=0, generation=0, policy_version=0, settings=SamplingSettings(max_tokens=16),
        max_turns=3, context_tokens=2000, environments=[environment], plays=plays, plays_expected={"e": 4},
    )  # fmt: skip
    sampler = WritingSampler()
    work = RolloutWork(sampler, AnyPolicy(), sandbox, LetterDialect(), RolloutSettings(), lambda: False)  # type: ignore[arg-type]
    outputs = work.run(request, Reference(topic="t", partition=0, offset=0, id="u"))
    return [record for _, record in outputs if isinstance(record, RolloutFinished)], sampler


def test_a_plays_jail_is_told_neither_hint_nor_solution_nor_the_witness(sandbox: Sandbox, sent: list[bytes]) -> None:
    actions = [action for found in sandbox.witness(SOURCE, [1, 2]) for action in found]
    assert any(b"def solution" in frame for frame in sent)  # the witness's own jail is told
    sent.clear()
    finished, sampler = play_both_arms(sandbox)
    assert [(record.arm, record.end_reason, len(record.turns)) for record in finished] == [
        (PLAIN, "truncated", 3),
        (PLAIN, "truncated", 3),
        (HINTED, "truncated", 3),
        (HINTED, "truncated", 3),
    ]
    assert sum(HINT in prompt for prompt in sampler.prompts) == len(sampler.prompts) / 2 > 0  # the hinted policy was told
    told = b"".join(sent)
    assert told.count(b'"perhaps"') == 12
    assert b"class ProductEnv" in told
    for secret in (HINT, "hint", "solution", *actions):
        assert secret.encode() not in told


def test_jails_of_both_arms_are_told_the_same(sandbox: Sandbox, sent: list[bytes]) -> None:
    play_both_arms(sandbox)
    # number of the session and id of the request apart
    requests = [frame[4:].split(b",", 2) for frame in sent if frame[4:].startswith((b'["reset"', b'["step"'))]
    told = [(kind, rest) for kind, _, rest in requests]
    assert len(told) == 4 + 12
    resets = [one for one in told if one[0] == b'["reset"']
    assert resets[:2] == resets[2:]
    assert len({one for one in told if one[0] == b'["step"'}) == 1
