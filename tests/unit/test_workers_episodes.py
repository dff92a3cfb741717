"""Episodes over a scripted sampler and a sandbox without jail: tokens, spans, ends, returns, and failures of the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from schemas.common import Reference, SamplingSettings, VersionSpan, version_span
from schemas.rollout import HINTED, PLAIN, Play, PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.settings import RolloutSettings
from tests.fakes.dialect import EOS, LetterDialect, encode
from tests.fakes.sampler import HashSampler
from tests.fakes.sandbox import FakeSandbox
from workers.episodes import Episode, Rules, play_all, turn_seed
from workers.rollout import RolloutWork
from workers.samplers.base import SampleRequest, SampleResult, SamplingInterrupted
from workers.sandbox.base import EndReason
from workers.sessions import SessionTable

COUNTDOWN = """
class CountEnv:
    def __init__(self, max_turns=25): self.turn = 0
    def reset(self, seed=None): self.left = 2 + seed % 2; return f"left {self.left}", {}
    def step(self, action):
        self.left -= 1
        if action == "x": return "lost", -0.5, True, False, {}
        if action == "n": return "broken", float("nan"), True, False, {}
        if action == "e": return str(1 // 0), 0.0, False, False, {}
        if action == "t": return "cut", 0.25, False, True, {}
        return f"left {self.left}", 3.0 if self.left == 0 else 0.5, self.left == 0, False, {}
"""


class ActingSampler(HashSampler):
    """Says what `act` tells for a request."""

    def __init__(self, act: Callable[[SampleRequest], str], context_tokens: int = 500) -> None:
        super().__init__(context_tokens=context_tokens)
        self.policy_version, self.policy_digest = 4, "d4"
        self.act = act

    def complete(self, request: SampleRequest) -> SampleResult:
        tokens = [*encode(self.act(request)), EOS][: request.settings.max_tokens]
        return SampleResult(tokens, [-0.5] * len(tokens), "stop" if tokens[-1] == EOS else "length")


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    def build(number: int = 0, **changes: Any) -> Episode:
        given: dict[str, Any] = {
            "arm": PLAIN,
            "seed": 0,
            "max_turns": 5,
            "reward_min": -0.75,
            "witness": 1.0,
            "source": COUNTDOWN,
        } | changes
        play = Play(
            play_id=f"p{number}", env_id="e", arm=given["arm"], index=number, env_seed=given["seed"], sampling_seed=100 + number
        )
        environment = PlayEnvironment(
            env_id="e", source=given["source"], hint="go", witness_min_return=given["witness"], reward_min=given["reward_min"]
        )
        return Episode(play, environment, given["max_turns"])

    return build


def rules(**changes: Any) -> Rules:
    given: dict[str, Any] = {"max_tokens": 8, "context": 400, "unterminated": "lowest"} | changes
    return Rules(SamplingSettings(max_tokens=given["max_tokens"]), 5, given["context"], given["unterminated"])


def play(
    episodes: Sequence[Episode],
    act: Callable[[SampleRequest], str] = lambda request: "a",
    sandbox: FakeSandbox | None = None,
    **changes: Any,
) -> ActingSampler:
    sampler = ActingSampler(act)
    sandbox = sandbox or FakeSandbox()
    table = SessionTable(sandbox, tries=3, max_open=changes.pop("max_open", 64))
    play_all(episodes, sampler, table, LetterDialect(), rules(**changes))
    assert sandbox.open_sessions == 0
    assert not any(episode.is_open for episode in episodes)
    return sampler


def test_tokens_stand_in_the_order_the_policy_saw_and_spans_hold_the_sampled_ones(make_episode: Callable[..., Episode]) -> None:
    episode = make_episode()
    play([episode])
    assert "".join(map(chr, episode.tokens)) == "left 2>a\0left 1>a\0"
    sampled = [place for span in episode.spans for place in range(span.start, span.end)]
    assert [episode.tokens[place] for place in sampled] == [ord("a"), EOS, ord("a"), EOS]
    assert [place for place, logprob in enumerate(episode.logprobs) if logprob] == sampled
    assert len(episode.logprobs) == len(episode.tokens)
    assert {(span.policy_version, span.policy_digest, span.settings.max_tokens) for span in episode.spans} == {(4, "d4", 8)}
    assert [(turn.action_start, turn.action_end) for turn in episode.turns] == [(span.start, span.end) for span in episode.spans]
    assert [(turn.observation, turn.action, turn.reward) for turn in episode.turns] == [
        ("left 2", "a", 0.5),
        ("left 1", "a", 3.0),
    ]
    assert (episode.observation, episode.end_reason, episode.terminated) == ("left 0", "terminated", True)


def test_a_terminated_return_is_the_last_reward_clamped_and_wins_from_the_witness_minimum(
    make_episode: Callable[..., Episode],
) -> None:
    won, lost, modest = make_episode(0), make_episode(1), make_episode(2, witness=-0.5)
    play([won, lost, modest], lambda request: "a" if request.session == "p0" else "x")
    assert [one.episode_return("lowest") for one in (won, lost, modest)] == [1.0, -0.5, -0.5]
    assert [one.won() for one in (won, lost, modest)] == [True, False, True]


@pytest.mark.parametrize(
    ("act", "changes", "reason"),
    [
        ("t", {}, "truncated"),
        ("e", {}, "env_error"),
        ("n", {}, "non_finite"),
        ("a", {"max_turns": 1}, "turns"),
    ],
)
def test_an_episode_that_did_not_terminate_names_its_end_and_is_never_worth_more_than_losing(
    make_episode: Callable[..., Episode], act: str, changes: dict[str, Any], reason: str
) -> None:
    episode, kind = make_episode(witness=-1.0, **changes), make_episode(1, witness=-1.0, reward_min=0.4, **changes)
    play([episode, kind], lambda request: act)
    assert episode.end_reason == reason
    assert (episode.episode_return("lowest"), episode.episode_return("zero")) == (-0.75, 0.0)
    assert kind.episode_return("lowest") == 0.0
    assert not episode.won()
    assert not episode.lost


def test_a_full_context_ends_the_episode_behind_its_last_own_token(make_episode: Callable[..., Episode]) -> None:
    short, none = make_episode(), make_episode(1, seed=1)
    play([short], context=12)
    assert short.end_reason == "context"
    assert len(short.tokens) == short.spans[-1].end <= 12
    play([none], context=5)
    assert (none.end_reason, none.turns, len(none.tokens)) == ("context", [], 5)
    capped = make_episode(2)
    sampler = play([capped], lambda request: "aaaaaaaaaaaa", context=10)
    assert sampler.batches[0][0].settings.max_tokens == 3
    assert len(capped.tokens) == 10


def test_the_hint_reaches_the_prompt_of_its_arm_and_no_jail(make_episode: Callable[..., Episode]) -> None:
    plain, hinted = make_episode(0), make_episode(1, arm=HINTED)
    sandbox = FakeSandbox()
    play([plain, hinted], sandbox=sandbox)
    assert "".join(map(chr, hinted.tokens)).startswith("left 2|go>")
    assert "|go" not in "".join(map(chr, plain.tokens))
    assert not any("go" in text for text in sandbox.texts)


def test_all_open_episodes_sample_in_one_batch_a_turn_with_seeds_of_their_own(make_episode: Callable[..., Episode]) -> None:
    episodes = [make_episode(number, seed=number) for number in range(6)]
    sampler = play(episodes)
    assert [len(batch) for batch in sampler.batches] == [6, 6, 3]
    seeds = [request.seed for batch in sampler.batches for request in batch]
    assert len(set(seeds)) == len(seeds)
    assert sampler.batches[1][2].seed == turn_seed(102, 1)


@pytest.mark.parametrize("reason", [EndReason.TIMEOUT, EndReason.DIED])
@pytest.mark.parametrize("failing", ["open", "reset", "step"])
def test_a_failure_of_the_machine_is_repeated_and_counted_and_leaves_no_other_trace(
    make_episode: Callable[..., Episode], failing: str, reason: EndReason
) -> None:
    calm, shaken = [make_episode(n, seed=n) for n in range(4)], [make_episode(n, seed=n) for n in range(4)]
    undisturbed = play(calm)
    sandbox = FakeSandbox({(failing, 2): reason, (failing, 4): reason, (failing, 5): reason})
    disturbed = play(shaken, sandbox=sandbox)
    assert sandbox.calls[failing] >= 7
    assert sum(one.tries for one in shaken) == 3
    assert [replace(one, tries=0) for one in shaken] == calm
    assert disturbed.batches == undisturbed.batches


def test_a_play_whose_tries_are_used_up_is_lost_with_the_reason_and_only_it(make_episode: Callable[..., Episode]) -> None:
    episodes = [make_episode(number) for number in range(3)]
    play(episodes, sandbox=FakeSandbox({("reset", number): EndReason.TIMEOUT for number in (2, 3, 4)}))
    assert [bool(one.lost) for one in episodes] == [False, True, False]
    assert episodes[1].lost.startswith("timeout in 3 tries")
    assert [one.tries for one in episodes] == [0, 3, 0]
    assert episodes[1].tokens == []


def test_an_end_that_is_data_is_not_tried_again(make_episode: Callable[..., Episode]) -> None:
    episode = make_episode()
    sandbox = FakeSandbox({("reset", 1): EndReason.OOM})
    play([episode], sandbox=sandbox)
    assert (episode.end_reason, episode.lost, sandbox.calls["open"]) == ("oom", "", 1)


def test_an_environment_that_does_not_repeat_itself_after_a_failure_is_lost(make_episode: Callable[..., Episode]) -> None:
    fickle = "import random\n" + COUNTDOWN.replace('f"left {self.left}", {}', 'f"left {random.random()} {self.left}", {}', 1)
    episode = make_episode(source=fickle)
    play([episode], sandbox=FakeSandbox({("step", 1): EndReason.DIED}))
    assert "did not repeat itself" in episode.lost


def test_more_episodes_than_sessions_play_as_if_there_were_enough(make_episode: Callable[..., Episode]) -> None:
    many, few = [make_episode(n, seed=n) for n in range(9)], [make_episode(n, seed=n) for n in range(9)]
    play(many)
    sandbox = FakeSandbox()
    play(few, sandbox=sandbox, max_open=2)
    assert few == many
    assert sandbox.most_open == 2


def test_a_stop_closes_all_sessions(make_episode: Callable[..., Episode]) -> None:
    sandbox = FakeSandbox()
    looks: list[int] = []

    def interrupted() -> bool:
        looks.append(1)
        return len(looks) > 3

    with pytest.raises(SamplingInterrupted):
        play_all(
            [make_episode(n) for n in range(5)],
            ActingSampler(lambda request: "a"),
            SessionTable(sandbox, tries=3),
            LetterDialect(),
            rules(),
            interrupted,
        )
    assert sandbox.most_open == 3
    assert sandbox.open_sessions == 0


def test_a_policy_that_is_loaded_between_turns_writes_the_later_ones_and_spans_tell_which(
    make_episode: Callable[..., Episode],
) -> None:
    episodes = [make_episode(number, seed=number) for number in range(2)]  # of two and three turns
    sampler = ActingSampler(lambda request: "a")

    def renew() -> None:
        if len(sampler.batches) == 1:
            sampler.policy_version, sampler.policy_digest = 6, "d6"

    play_all(episodes, sampler, SessionTable(FakeSandbox(), tries=3), LetterDialect(), rules(), before_turn=renew)
    assert [[(span.policy_version, span.policy_digest) for span in episode.spans] for episode in episodes] == [
        [(4, "d4"), (6, "d6")],
        [(4, "d4"), (6, "d6"), (6, "d6")],
    ]
    assert [version_span(episode.spans) for episode in episodes] == [VersionSpan(oldest=4, newest=6)] * 2


class Feed:
    """Notes what the worker asks for, in place of the policies' topic."""

    def __init__(self) -> None:
        self.held: list[tuple[int, bool]] = []

    def hold(self, version: int, *, newest: bool = False) -> None:
        self.held.append((version, newest))


@pytest.mark.parametrize(("wanted", "bound", "asked"), [(True, False, 4), (False, False, 1), (True, True, 1)])
def test_a_worker_asks_for_the_newest_policy_before_each_turn_where_recipe_and_unit_want_it(
    wanted: bool, bound: bool, asked: int
) -> None:
    feed, settings = Feed(), RolloutSettings(newest_each_turn=wanted)
    work = RolloutWork(ActingSampler(lambda request: "a"), feed, FakeSandbox(), LetterDialect(), settings, lambda: False)  # type: ignore[arg-type]
    play = Play(play_id="p", env_id="e", arm=PLAIN, index=0, env_seed=1, sampling_seed=3)
    request = RolloutRequested(
        run_id="r",
        event_id="u",
        unit_id="u",
        step=3,
        generation=1,
        policy_version=2,
        settings=SamplingSettings(max_tokens=8),
        max_turns=5,
        context_tokens=400,
        environments=[PlayEnvironment(env_id="e", source=COUNTDOWN, hint="", witness_min_return=1.0, reward_min=0.0)],
        plays=[play],
        plays_expected={"e": 1},
        newest=not bound,
    )
    ((_, record),) = work.run(request, Reference(topic="t", partition=0, offset=0, id="u"))
    assert isinstance(record, RolloutFinished)
    assert len(record.spans) == 3
    assert feed.held == [(2, not bound)] * asked
