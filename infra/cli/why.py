"""`spade why ENV_ID`: the story of one environment, from its document to what it trained and what came of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infra.cli import options
from infra.plaintext import escape, escape_line

if TYPE_CHECKING:
    from infra.clickhouse import Row
    from infra.lineage import Lineage

LONGEST_DOCUMENT = 1500
KIN = ("environment", "as", "gen", "win", "regret", "reward")


def why(
    env_id: Annotated[str, typer.Argument(help="An environment's id, or the beginning of one.")],
    store: options.Store = "",
    folder: options.RunFolder = "",
    run: Annotated[str, typer.Option("--run", help="Look in this run only.", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Everything as one JSON object.")] = False,
) -> None:
    """Why is this environment what it is? Its document and memory, verdict, plays of both arms, score, training, children.

    Default store: that of `spade up`, else that of the newest run in the folder
    runs. With --dir, that of a run which may have ended.
    """
    from infra.cli.runstore import run_store
    from infra.lineage import read_lineage

    with run_store(store, folder) as opened:
        found = read_lineage(opened.store, env_id, run or opened.run_id)
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found), "proof": found.proof}, default=str, ensure_ascii=True))
        return
    for part in story(found):
        options.out.print(part, soft_wrap=False)


def story(found: Lineage) -> list[Any]:
    """The parts to print; whatever a model or a document says is text in them."""
    parts: list[Any] = [_head(found), _panel("Document", _document(found.prompt))]
    if found.prompt["reaction"]:
        parts.append(_panel("The collapse control changed what was asked", str(found.prompt["reaction"])))
    if found.parents:
        parts.append(_table("Shown to the designer from memory", KIN, _kin(found.parents)))
    parts += _design(found)
    if found.plays:
        parts.append(_plays(found))
    if found.scores:
        parts.append(_scores(found))
    if len(found.measured) > 1:
        parts.append(_measured(found))
    if found.audits:
        audits = [(one["play_id"], one["step"], _audit(one)) for one in found.audits]
        parts.append(_table("Audited plays", ("play", "step", "repeated in a fresh jail"), audits))
    parts.append(_panel("What came of it", _outcome(found)))
    if found.children:
        parts.append(_table("Designs that were shown it", KIN, _kin(found.children)))
    return parts


def _head(found: Lineage) -> Text:
    slot = found.prompt
    return Text(
        f"environment {found.env_id}\nrun {found.run_id}, generation {found.generation}, slot {slot['slot']}, "
        f"attempt {slot['design_attempt'] + 1}, skill {escape_line(str(slot['skill']))}: {found.place}"
    )


def _document(prompt: Row) -> str:
    if not prompt["document_id"]:
        return "none: the corpus is off"
    tag = f"  ({prompt['document_tag']})" if prompt["document_tag"] else ""
    title = f"{prompt['document_id']}  {prompt['document_title']}".strip() + tag
    return f"{title}\n\n{escape(str(prompt['document_text']), LONGEST_DOCUMENT)}"


def _design(found: Lineage) -> list[Any]:
    parts: list[Any] = []
    if found.design is not None:
        one = found.design
        told = (
            f"policy {one['policy_version']} ({str(one['policy_digest'])[:12]}), {one['completion_tokens']} tokens, "
            f"stopped by {one['stop_reason'] or one['lost'] or '-'}{_tries(one)}"
        )
        source = found.verdict["full_source"] if found.verdict else one["source"]
        parts.append(_panel("Design", f"{told}\n\n{source or one['parse_error']}\n\nhint: {one['hint']}"))
    if found.verdict is not None:
        one = found.verdict
        if one["verdict_from"]:
            told = f"taken over from an equal design's verdict ({one['verdict_from']})"
        else:
            told = f"{one['gate_cpu_s']:.2f} s of CPU in the gate"
        answer = "admitted" if one["valid"] else f"refused by rule {one['rule']}: {one['evidence']}"
        parts.append(_panel("Verdict", f"{answer}; {told}{_tries(one)}"))
        rows = [(rule["rule"], "yes" if rule["passed"] else "NO", _numbers(rule), rule["evidence"]) for rule in found.proof]
        parts.append(_table("What each rule saw", ("rule", "passed", "numbers", "evidence"), rows))
    return parts


def _plays(found: Lineage) -> Table:
    rows = [
        (
            one["step"], one["arm"], one["env_seed"], one["policy_version"], one["turns"],
            "lost" if one["lost"] else f"{one['episode_return']:+.2f}", "won" if one["won"] else "",
            f"{one['lost'] or one['end_reason']}{_tries(one)}", one["play_id"],
        )
        for one in found.plays
    ]  # fmt: skip
    return _table("Plays", ("step", "arm", "seed", "policy", "turns", "return", "", "ended by", "play"), rows)


def _scores(found: Lineage) -> Table:
    rows = [
        (
            f"{one['step']}{' (probe)' if one['probe'] else ''}", f"{one['plain_win_rate']:.2f} of {one['plain_plays']}",
            f"{one['hint_win_rate']:.2f} of {one['hint_plays']}" if one["hint_plays"] else "-",
            f"{one['regret']:+.2f} ± {one['regret_se']:.2f}" if one["pairs"] else "-",
            f"{one['earlier_regret']:+.2f} ± {one['earlier_regret_se']:.2f}" if one["earlier_pairs"] else "-",
            one["lost"], one["evicted"],
        )
        for one in found.scores
    ]  # fmt: skip
    names = ("step", "win", "with hint", "regret ± SE", "of the earlier policy", "lost", "evicted")
    return _table("Scores", names, rows)


def _measured(found: Lineage) -> Table:
    rows = [
        (
            one["measured"], "probe plays" if one["probed"] else "its own plays", f"{one['win_rate']:.2f}",
            f"{one['hint_win_rate']:.2f}", f"{one['regret']:+.2f} ± {one['regret_se']:.2f}", f"{one['reward']:.2f}",
            one["evicted"],
        )
        for one in found.measured
    ]  # fmt: skip
    return _table("How difficult it was", ("generation", "by", "win", "with hint", "regret ± SE", "reward", "evicted"), rows)


def _outcome(found: Lineage) -> str:
    lines = []
    if found.reward is None:
        lines.append("Its generation has not closed.")
    else:
        one = found.reward
        lines.append(
            f"reward {one['reward']:.3f}: w {one['w']:.3f}, regret {one['regret']:+.3f} ± {one['regret_se']:.3f}"
            f"{' (uncredited: the hint did not help the earlier policy)' if one['uncredited'] else ''}; "
            f"advantage {one['advantage']:+.3f}"
        )
        if one["evicted"]:
            lines.append(f"evicted: {one['evicted']}")
        if one["repeated"]:
            lines.append(
                f"similarity to its nearest earlier design {one['repeated']:.2f}{', identical code' if one['identical'] else ''}"
            )
    for one in found.trained:
        what = [f"{one['plays']} of its plays"] * bool(one["plays"]) + ["the design itself"] * bool(one["as_design"])
        lines.append(
            f"step {one['step']} trained {' and '.join(what)}{' (skipped: ' + one['skipped'] + ')' if one['skipped'] else ''}"
        )
    return "\n".join(lines if found.trained else [*lines, "No step has trained it."])


def _kin(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    return [
        (one["env_id"], one["kind"], one.get("generation", "-"), *(_rate(one, name) for name in ("win_rate", "regret", "reward")))
        for one in rows
    ]


def _audit(one: Row) -> str:
    return (
        f"could not be repeated: {one['lost']}" if one["lost"] else "equal" if one["equal"] else f"differs: {one['difference']}"
    )


def _tries(row: Row) -> str:
    return f", after {row['tries']} failed tries" if row["tries"] else ""


def _rate(row: Row, name: str) -> str:
    return f"{row[name]:.2f}" if name in row else "-"


def _numbers(rule: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in rule.get("numbers", {}).items())


def _panel(title: str, text: str) -> Panel:
    return Panel(Text(escape(text, 20_000)), title=title, title_align="left")


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(*names, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text(escape_line(str(value), 300)) for value in row))
    return table
