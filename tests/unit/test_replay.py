"""A repetition is equal bit for bit or names the first difference, over a scripted sampler and a sandbox without jail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infra.archive import ArchiveWriter
from infra.cli.app import run_app
from infra.cli.replay import _as_text, exit_code
from infra.policystore import PolicyStore
from infra.runs import Run, tokenizer_digest
from schemas import ids
from schemas.common import SamplingSettings, pack_floats, pack_ints, unpack_floats, unpack_ints
from schemas.errors import PolicyError, SettingsError
from schemas.recipes import build_recipe
from schemas.rollout import HINTED, PLAIN, Play, PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.run import RunStarted
from schemas.settings import RolloutSettings
from schemas.train import Canary, PolicyPublished
from tests.fakes.dialect import LetterDialect
from tests.fakes.recordsource import ListSource
from tests.fakes.sampler import HashSampler
from tests.fakes.sandbox import FakeSandbox
from workers.episodes import Episode, Rules, play_all
from workers.replay import Check, find_episode, first_difference, kept_policy, read_run, repeat_actions, sample_again
from workers.rollout import finished, lost_play
from workers.sandbox.base import EndReason
from workers.sessions import SessionTable

SOURCE = """
class DiceEnv:
    def __init__(self, max_turns=25): self.turn = 0
    def reset(self, seed=None):
        import random
        self.dice = random.Random(seed)
        return f"seed {seed}", {}
    def step(self, action):
        self.turn += 1
        return f"{len(action)} {self.dice.randrange(100)}", 0.25 * self.turn, self.turn == 3, False, {}
"""
SETTINGS = RolloutSettings(max_turns=5, context_tokens=400)


def make_request(run_id: str = "r", plays: int = 4) -> RolloutRequested:
    env = ids.env_id(run_id, 0, 0, 0)
    unit = ids.rollout_unit_id(run_id, 0, 0)
    names = [(arm, index, ids.play_id(env, 0, arm, index)) for arm in (PLAIN, HINTED) for index in range(plays // 2)]
    return RolloutRequested(
        run_id=run_id,
        event_id=unit,
        unit_id=unit,
        step=0,
        generation=0,
        policy_version=2,
        settings=SamplingSettings(max_tokens=6),
        max_turns=5,
        context_tokens=400,
        environments=[PlayEnvironment(env_id=env, source=SOURCE, hint="go", witness_min_return=0.5, reward_min=0.0)],
        plays=[
            Play(play_id=name, env_id=env, arm=arm, index=index, env_seed=index, sampling_seed=ids.sampling_seed(name))
            for arm, index, name in names
        ],
        plays_expected={env: plays},
    )


def make_sampler() -> HashSampler:
    sampler = HashSampler(context_tokens=500)
    sampler.policy_version, sampler.policy_digest = 2, "d2"
    return sampler


def play_unit(request: RolloutRequested) -> list[RolloutFinished]:
    environments = {one.env_id: one for one in request.environments}
    episodes = [Episode(play, environments[play.env_id], request.max_turns) for play in request.plays]
    rules = Rules(request.settings, request.max_turns, request.context_tokens, SETTINGS.unterminated_return)
    play_all(episodes, make_sampler(), SessionTable(FakeSandbox(), tries=1), LetterDialect(), rules)
    return [finished(request, episode, rules) for episode in episodes]


@pytest.fixture
def request_() -> RolloutRequested:
    return make_request()


@pytest.fixture
def records(request_: RolloutRequested) -> list[RolloutFinished]:
    return play_unit(request_)


def log_of(*records: Any) -> ListSource:
    return ListSource([(0, record) for record in records])


def again(source: ListSource, play_id: str) -> Check:
    return sample_again(find_episode(source, play_id), make_sampler(), FakeSandbox(), LetterDialect(), SETTINGS)


def test_an_undisturbed_episode_is_equal_in_both_parts(request_: RolloutRequested, records: list[RolloutFinished]) -> None:
    source = log_of(request_, *records)
    for record in records:
        found = find_episode(source, record.play_id)
        assert found.play == record
        assert found.environment.source == SOURCE
        assert sorted(found.unit) == sorted(one.play_id for one in records)
        assert len(record.turns) == 3
        actions = repeat_actions(found, FakeSandbox())
        assert (actions.outcome, actions.detail) == ("equal", "3 turns gave the same observations, rewards and end")
        sampling = again(source, record.play_id)
        assert sampling.outcome == "equal"
        sampled = sum(turn.action_end - turn.action_start for turn in record.turns)
        assert f"{sampled} token ids and log-probabilities, and those of the other 3 plays" in sampling.detail


def test_of_copies_the_first_in_the_log_counts(request_: RolloutRequested, records: list[RolloutFinished]) -> None:
    copy = msgspec.structs.replace(records[0], end_reason="copy")
    late = msgspec.structs.replace(request_, policy_version=9)
    found = find_episode(log_of(request_, late, *records, copy), records[0].play_id)
    assert (found.play, found.request) == (records[0], request_)


def change_turn(record: RolloutFinished, number: int, **changes: Any) -> RolloutFinished:
    turns = list(record.turns)
    turns[number] = msgspec.structs.replace(turns[number], **changes)
    return msgspec.structs.replace(record, turns=turns)


def change_token(record: RolloutFinished, place: int) -> RolloutFinished:
    tokens = unpack_ints(record.tokens)
    tokens[place] += 1
    return msgspec.structs.replace(record, tokens=pack_ints(tokens))


def change_logprob(record: RolloutFinished, place: int) -> RolloutFinished:
    logprobs = bytearray(record.logprobs)
    logprobs[4 * place] ^= 1  # the last bit of a float32
    return msgspec.structs.replace(record, logprobs=bytes(logprobs))


@pytest.mark.parametrize(
    ("change", "actions", "sampling"),
    [
        (lambda one: change_turn(one, 1, observation="other"), "turn 1: observation", "turns: "),
        (lambda one: change_turn(one, 2, reward=0.7500000001), "turn 2: reward 0.75 where 0.7500000001", "turns: "),
        (lambda one: change_token(one, one.turns[1].action_start + 2), "", "turn 1, token 2 of its action: token "),
        (lambda one: change_token(one, 0), "", "turn 0, token 0 of the episode, which was shown: token "),
        (lambda one: change_logprob(one, one.turns[2].action_end - 1), "", "turn 2, token 5 of its action: log-probability -4.5"),
        (lambda one: msgspec.structs.replace(one, end_reason="turns"), "turn 2: terminated where it went on", "end_reason: "),
        (lambda one: msgspec.structs.replace(one, final_observation="x"), "the last observation", "final_observation: "),
    ],
)
def test_a_changed_record_is_told_with_its_first_difference(
    request_: RolloutRequested,
    records: list[RolloutFinished],
    change: Callable[[RolloutFinished], RolloutFinished],
    actions: str,
    sampling: str,
) -> None:
    changed = change(records[0])
    source = log_of(request_, changed, *records[1:])
    first = repeat_actions(find_episode(source, changed.play_id), FakeSandbox())
    assert first.outcome == ("differs" if actions else "equal")
    assert first.detail.startswith(actions)
    second = again(source, changed.play_id)
    assert second.outcome == "differs"
    assert second.detail.startswith(sampling)


def test_another_play_of_the_unit_that_differs_is_told_by_its_id(
    request_: RolloutRequested, records: list[RolloutFinished]
) -> None:
    source = log_of(request_, *records[:3], change_token(records[3], records[3].turns[0].action_start))
    check = again(source, records[0].play_id)
    assert check.outcome == "differs"
    assert check.detail.startswith(f"play {records[3].play_id} of its unit: turn 0, token 0")


def test_plays_of_the_unit_that_were_lost_are_told_and_not_compared(
    request_: RolloutRequested, records: list[RolloutFinished]
) -> None:
    lost = lost_play(request_, request_.plays[3], request_.environments[0], "host busy")
    source = log_of(request_, *records[:3], lost)
    check = again(source, records[0].play_id)
    assert check.outcome == "equal"
    assert check.detail.endswith("the other 2 plays of its unit (1 plays of its unit were lost then, which changed the batches)")
    with pytest.raises(SettingsError, match=r"was lost to the infrastructure \(host busy\)"):
        find_episode(source, lost.play_id)


def test_what_only_told_people_when_is_no_difference(records: list[RolloutFinished]) -> None:
    assert first_difference(records[0], msgspec.structs.replace(records[0], created_at=9.0, tries=2)) == ""


def test_a_turn_that_was_written_before_faults_were_is_no_difference(records: list[RolloutFinished]) -> None:
    assert first_difference(change_turn(records[0], 1, fault="", cut=""), change_turn(records[0], 1, fault="x", cut="turn")) == ""


def test_what_was_wrong_with_a_turn_stands_behind_its_action(request_: RolloutRequested, records: list[RolloutFinished]) -> None:
    told = change_turn(change_turn(records[0], 0, fault="no box", cut="turn"), 1, cut="context")
    shown = _as_text(find_episode(log_of(request_, told), told.play_id))
    assert [line.partition(" reward ")[2] for line in shown.splitlines() if " tokens, reward " in line][:2] == [
        f"{told.turns[0].reward:g}, cut at the turn's limit, no box)",
        f"{told.turns[1].reward:g}, cut at the context's end)",
    ]


def test_a_shorter_repetition_differs_where_it_ends(records: list[RolloutFinished]) -> None:
    was = records[0]
    cut = unpack_ints(was.tokens)[:-1]
    now = msgspec.structs.replace(was, tokens=pack_ints(cut), logprobs=pack_floats(unpack_floats(was.logprobs)[:-1]))
    assert first_difference(was, now).startswith("turn 2, token 5 of its action: token none where ")


def test_a_machine_that_ends_the_jail_in_every_try_leaves_the_part_unchecked(
    request_: RolloutRequested, records: list[RolloutFinished]
) -> None:
    found = find_episode(log_of(request_, *records), records[0].play_id)
    busy = FakeSandbox({("step", number): EndReason.TIMEOUT for number in range(1, 9)})
    check = repeat_actions(found, busy)
    assert (check.outcome, busy.calls["open"]) == ("unchecked", 3)
    assert "the machine ended the jail in 3 tries" in check.detail
    once = repeat_actions(found, FakeSandbox({("step", 2): EndReason.DIED}))
    assert once.outcome == "equal"


def test_unknown_and_unfinished_episodes_are_told_apart(request_: RolloutRequested, records: list[RolloutFinished]) -> None:
    source = log_of(request_, *records[1:])
    with pytest.raises(SettingsError, match="the list asks for no episode nobody in run r"):
        find_episode(source, "nobody", "r")
    with pytest.raises(SettingsError, match="was asked for and the list holds no end of it"):
        find_episode(source, records[0].play_id)


def test_the_exit_code_tells_equal_different_and_not_checked() -> None:
    equal, differs = Check("actions", "equal", ""), Check("sampling", "differs", "")
    unchecked = Check("sampling", "unchecked", "")
    assert [exit_code(one) for one in ([equal], [equal, differs], [equal, unchecked])] == [0, 1, 2]
    assert exit_code([Check("actions", "differs", ""), unchecked]) == 1


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Run, PolicyPublished]:
    """A run whose policy 2 is kept."""
    model = tmp_path / "model"
    model.mkdir()
    for name, text in (("config.json", '{"model_type": "x"}'), ("model.safetensors", "w"), ("tokenizer.json", "{}")):
        (model / name).write_text(text)
    digest, place = PolicyStore(str(tmp_path / "policies")).publish(2, model)
    recipe = build_recipe({})
    started = RunStarted(
        run_id="r",
        event_id="s",
        recipe_json=recipe.model_dump_json(),
        recipe_name="x",
        seed=0,
        steps=4,
        policy_place=str(tmp_path / "policies"),
        code_digest="",
        corpus_digest="",
        tokenizer_digest=tokenizer_digest(model),
        dialect="nano",
    )
    policy = PolicyPublished(
        run_id="r", event_id="p", version=2, digest=digest, place=place, canary=Canary(tokens=b"", logprobs=b"")
    )
    return Run(started=started, recipe=recipe), policy


def test_the_publication_whose_digest_sampled_is_taken_and_the_last_of_it(
    request_: RolloutRequested, records: list[RolloutFinished], kept: tuple[Run, PolicyPublished]
) -> None:
    run, policy = kept
    lost = msgspec.structs.replace(policy, event_id="lost", digest="another")
    ours = msgspec.structs.replace(policy, event_id="ours", digest="d2")
    later = msgspec.structs.replace(policy, event_id="later", version=3)
    source = log_of(request_, *records, run.started, ours, lost, later)
    found, chosen = read_run(source, find_episode(source, records[0].play_id))
    assert (found.started, chosen) == (run.started, ours)
    without = log_of(request_, *records, run.started, lost)
    assert read_run(without, find_episode(without, records[0].play_id))[1] is None


def test_a_policy_is_used_only_where_it_is_kept_and_whole(kept: tuple[Run, PolicyPublished], tmp_path: Path) -> None:
    run, policy = kept
    folder, _ = kept_policy(run, policy, 2, None)
    assert folder == Path(policy.place)
    moved = tmp_path / "elsewhere"
    Path(run.policy_place).rename(moved)
    with pytest.raises(PolicyError, match=r"policy 2 is no longer kept: .*policies/v00000002-.* is not there"):
        kept_policy(run, policy, 2, None)
    assert kept_policy(run, policy, 2, moved)[0] == moved / folder.name
    (moved / folder.name / "model.safetensors").write_text("v")
    with pytest.raises(PolicyError, match="has digest"):
        kept_policy(run, policy, 2, moved)
    with pytest.raises(PolicyError, match="no publication of policy 2"):
        kept_policy(run, None, 2, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody", "--archive", "ARCHIVE"], "asks for no episode nobody"),
        (["nobody", "--archive", "ARCHIVE", "--run", "s"], "holds run r, not s"),
        (["nobody", "--archive", "nowhere"], "nowhere is no archive"),
    ],
)
def test_the_command_says_what_it_can_not_find(
    request_: RolloutRequested, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with ArchiveWriter(tmp_path / "a") as writer:
        writer.write(log_of(request_).held[0])
        writer.finish("r", "tiny", "a test", 5.0)
    assert run_app(["replay", *(str(tmp_path / "a") if one == "ARCHIVE" else one for one in arguments)]) == 2
    assert message in capsys.readouterr().err
