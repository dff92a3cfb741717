"""`spade replay EPISODE_ID`: an episode of the log, turn by turn, and whether its repetition is equal bit for bit."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.interrupts import stoppable
from infra.plaintext import escape, escape_line
from schemas.errors import ReferenceGoneError, SettingsError, StoreError

if TYPE_CHECKING:
    from infra.recordsource import RecordSource
    from schemas.rollout import Turn
    from workers.replay import Check, Recorded

EQUAL, DIFFERS, COULD_NOT_RUN = 0, 1, 2


def replay(
    episode: Annotated[str, typer.Argument(metavar="EPISODE_ID", help="The play_id of an episode.")],
    run: options.RunId = "",
    archive: Annotated[
        Path | None, typer.Option("--archive", help="Read a folder of `spade archive`, and no broker.", show_default=False)
    ] = None,
    broker: options.Broker = "",
    store: options.Store = "",
    policies: Annotated[
        Path | None,
        typer.Option("--policies", help="Where the run's policies are now. Default: where the run put them.", show_default=False),
    ] = None,
    actions_only: Annotated[bool, typer.Option("--actions-only", help="Sample nothing, repeat the recorded actions.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the episode and the result as JSON.")] = False,
) -> None:
    """Repeat an episode bit for bit, with its seed, policy and source, and tell the first difference.

    Its actions are played again in a fresh jail: observations, rewards and end
    must be equal. While its policy is kept, its whole unit is sampled again:
    token ids and log-probabilities must be equal, on the same kind of machine.
    Exit 0: all equal; 1: something differs; 2: a part could not be checked,
    which is named (with --actions-only the sampling is not asked for).
    """
    from workers.replay import replay as repeat

    with stoppable():
        source, recorded = _find(episode, run, archive, broker, store)
        if not as_json:
            options.out.print(_as_text(recorded), markup=False)
        checks = repeat(source, recorded, policies=policies, actions_only=actions_only, say=_told)
    code = exit_code(checks)
    if as_json:
        print(json.dumps(_as_json(recorded, checks, code)))  # noqa: T201
    else:
        for check in checks:
            options.out.print(f"{check.part:9} {check.outcome}: {escape_line(check.detail)}", markup=False)
    raise typer.Exit(code)


def exit_code(checks: Sequence[Check]) -> int:
    """0 where every part is equal, 1 where one differs, else 2."""
    outcomes = {check.outcome for check in checks}
    return DIFFERS if "differs" in outcomes else COULD_NOT_RUN if "unchecked" in outcomes else EQUAL


def _find(episode: str, run: str, archive: Path | None, broker: str, store: str) -> tuple[RecordSource, Recorded]:
    """The source and the episode in it: by the store's word for where it stands, if there is one, else by a scan."""
    from workers.replay import find_episode, find_stored

    if archive is not None:
        from infra.archive import Archive

        opened = Archive(archive)
        if run and run != opened.manifest.run_id:
            raise SettingsError(f"{opened.name} holds run {opened.manifest.run_id}, not {run}", "Name the archive of that run")
        return opened, find_episode(opened, episode)
    from infra.clickhouse import connect
    from infra.recordsource import BrokerSource

    settings = options.require_broker(broker)
    source = BrokerSource(settings)
    dsn = store or options.standing().get("store", "")
    if dsn:
        try:
            with contextlib.closing(connect(dsn)) as opened_store:
                stored = find_stored(opened_store, settings, episode)
            if stored is not None and run in ("", stored.request.run_id):
                return source, stored
            _told("the store does not hold its unit, looking through the log ...")
        except (StoreError, ReferenceGoneError) as problem:
            _told(f"{problem.cause}: looking through the log ...")
    return source, find_episode(source, episode, run)


def _told(line: str) -> None:
    """Progress: on standard error, so that --json stays JSON."""
    print(escape_line(line), file=sys.stderr, flush=True)  # noqa: T201


def _as_text(recorded: Recorded) -> str:
    play = recorded.play
    lines = [
        f"episode {play.play_id}",
        f"  run {play.run_id}, generation {play.generation}, step {play.step}, arm {escape_line(play.arm)}, play {play.index}",
        f"  environment {play.env_id}, seed {play.env_seed}, policy {recorded.request.policy_version}, unit {play.unit_id}",
    ]
    for number, turn in enumerate(play.turns):
        lines += [
            f"turn {number}",
            *(f"  | {line}" for line in escape(turn.observation).split("\n")),
            f"  > {escape_line(turn.action)}    ({turn.action_end - turn.action_start} tokens, reward {turn.reward:g}"
            f"{_form(turn)})",
        ]
    if play.final_observation:
        lines += ["end", *(f"  | {line}" for line in escape(play.final_observation).split("\n"))]
    won = ", won" if play.won else ""
    return "\n".join([*lines, f"  {escape_line(play.end_reason)}, return {play.episode_return:g}{won}", ""])


def _form(turn: Turn) -> str:
    """What was wrong with a turn, as the line of its action ends."""
    limits = {"turn": "cut at the turn's limit", "context": "cut at the context's end"}
    told = [limits.get(turn.cut, turn.cut), turn.fault]
    return "".join(f", {escape_line(part)}" for part in told if part)


def _as_json(recorded: Recorded, checks: Sequence[Check], code: int) -> dict[str, Any]:
    play = recorded.play
    names = ("play_id", "run_id", "env_id", "unit_id", "generation", "step", "arm", "index", "env_seed")
    ends = ("final_observation", "end_reason", "terminated", "episode_return", "won")
    return {
        **{name: getattr(play, name) for name in names},
        "policy_version": recorded.request.policy_version,
        "turns": [
            {
                "observation": turn.observation,
                "action": turn.action,
                "reward": turn.reward,
                "tokens": turn.action_end - turn.action_start,
                "fault": turn.fault,
                "cut": turn.cut,
            }
            for turn in play.turns
        ],
        **{name: getattr(play, name) for name in ends},
        "checks": [{"part": check.part, "outcome": check.outcome, "detail": check.detail} for check in checks],
        "exit": code,
    }
