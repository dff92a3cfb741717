"""The report as one HTML file that opens anywhere: no script, no link, the picture inside.

In: facts and the picture's bytes. Out: text. Everything that a model or an environment wrote is escaped, and a content policy
forbids the page to load or run anything.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

from infra.plaintext import escape_html
from infra.report.facts import EpisodeFacts, ExampleFacts, RunFacts
from infra.report.terminal import alarm_words, audit_words, gate_words, verdict

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;font-size:13px;margin:.5rem 0 1.5rem;display:block;overflow-x:auto}
th,td{border-bottom:1px solid #ddd;padding:.25rem .6rem;text-align:right;white-space:nowrap}
th{background:#f4f4f4}td.l{text-align:left}
pre{background:#f6f8fa;padding:.8rem;overflow-x:auto;font-size:13px;white-space:pre-wrap;overflow-wrap:anywhere}
img{width:100%}.verdict{background:#eef6ee;border-left:4px solid #2e8b57;padding:.8rem 1rem}.who{color:#777}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
INTRODUCTION = (
    "One small language model played two roles. As <b>designer</b> it read a short document and wrote little "
    "environments: Python programs that set a task, check the answer and pay a reward, each with a <b>hint</b>. A "
    "<b>gate</b> ran every one in a jail and admitted only those that proved themselves. As <b>agent</b> the same "
    "model played the admitted ones, with and without the hint, on the same seeds. <b>Regret</b> is the return with "
    "hint minus the return without: where it is above zero the agent can do better than it does. The designer is paid "
    "for tasks that the agent wins about half of the time and where the hint helps; the agent is paid for winning. "
    "After each step the new <b>policy</b> was published, and the next designs and plays came from it."
)
WORDS = (
    ("valid", "designs that the gate admitted, of those proposed; refused ones are counted by the rule that refused them"),
    (
        "refused by rule",
        "parse: the completion was no code with a hint; contract: the file lacks a part or has one too many; types: a step gave "
        "something else than it must; witness: its own solution does not win; copier: a fixed trick wins; random, silent: "
        "chance or silence wins too often; seed: its start does not depend on the seed. workers/gate/rules.py tells of them all",
    ),
    ("win, win with hint", "share of plays won, mean over the generation's environments"),
    ("regret ± SE", "mean over environments of the paired difference of the two arms, with its standard error"),
    (
        "ESS",
        "effective sample size, 1 is full: what still counts of a batch after correcting for the older policy that sampled it",
    ),
    (
        "designer reward",
        "0.6 for a return near one half without hint, 0.4 for regret that is surely above zero; between 0 and 1. It falls "
        "where the agent has learned what the hints say and the designer has not found harder tasks yet",
    ),
    ("loss", "of the policy gradient, by role; it measures the batch, not the quality: it need not fall"),
    (
        "too old",
        "plays that were older than their role's bound when a batch would have taken them: dropped, and played again under "
        "new ids by a newer policy (free schedule)",
    ),
    ("drain", "a last step that trains the designs of the last generation, without plays"),
    ("repeats", "share of designs that nearly equal an earlier one, names and numbers aside: high for a model this small"),
    (
        "evicted",
        "an environment that behaved in a play unlike in the play's repetition, or paid no number: taken out of its generation, "
        "its plays from then on void",
    ),
    ("lag", "policy versions between the one that sampled and the one that was trained"),
    ("Vendi/n", "how different the designs of a generation are from each other; 1: all different"),
)


def write_page(facts: RunFacts, picture: bytes) -> str:
    """The whole page."""
    parts = [
        f"<h1>Self-play run {escape_html(facts.run_id)}</h1>",
        f"<p>{INTRODUCTION}</p>",
        f"<p>{len(facts.generations)} generations, {len(facts.steps)} optimizer steps, {facts.minutes:.1f} minutes. "
        f"Every hand-over was a record in Apache Kafka; this page was read from ClickHouse by SQL.</p>",
        f"<h2>Did it learn?</h2><p class=verdict>{escape_html(verdict(facts.evaluation))}</p>" if facts.evaluation else "",
        _families(facts),
        f'<h2>Curves</h2><img alt="curves of the run" src="data:image/png;base64,{base64.b64encode(picture).decode()}">',
        f"<h2>Alarms</h2><p class=verdict>{escape_html(alarm_words(facts)).replace(chr(10), '<br>')}</p>",
        "<h2>Generations</h2>" + _generations(facts),
        f"<p>The gate: {escape_html(gate_words(facts.gate))}</p>" if facts.gate.judged else "",
        "<h2>Optimizer steps</h2>" + _steps(facts),
        _evictions(facts),
        "<h3>Words</h3><ul>" + "".join(f"<li><b>{name}</b>: {meaning}</li>" for name, meaning in WORDS) + "</ul>",
        "<h2>Three environments that the model wrote</h2>" + "".join(map(_example, facts.examples)),
        _episode(facts.episode) if facts.episode else "",
        "<h2>Stored records</h2>"
        + _table(("table", "rows"), [(name, str(count)) for name, count in facts.records.items()], left={0}),
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">'
        f'<meta name="viewport" content="width=device-width"><title>Self-play run {escape_html(facts.run_id)}</title>'
        f"<style>{STYLE}</style>"
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], left: frozenset[int] | set[int] = frozenset()) -> str:
    top = "".join(f"<th>{escape_html(name)}</th>" for name in head)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=l' if place in left else ''}>{escape_html(cell)}</td>" for place, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _families(facts: RunFacts) -> str:
    if facts.evaluation is None or not facts.evaluation.families:
        return ""
    rows = [
        (name, f"{before:.1%}", f"{after:.1%}", f"{after - before:+.1%}")
        for name, (before, after) in sorted(facts.evaluation.families.items())
    ]
    return _table(("family of tasks", "before", "after", "difference"), rows, left={0})


def _generations(facts: RunFacts) -> str:
    head = ("generation", "designed by policy", "proposed", "valid", "refused by rule", "win", "win with hint", "regret ± SE",
            "designer reward", "Vendi/n", "repeats", "plays lost", "design s", "gate s", "play s")  # fmt: skip
    rows = [
        (
            str(row.generation),
            str(row.policy_version),
            str(row.proposed),
            str(row.valid),
            ", ".join(f"{rule} {count}" for rule, count in sorted(row.rejected.items())) or "-",
            f"{row.win_rate:.3f}",
            f"{row.hint_win_rate:.3f}",
            f"{row.regret:+.3f} ± {row.regret_se:.3f}",
            f"{row.designer_reward:.3f}",
            f"{row.vendi:.2f}",
            f"{row.repeats:.2f}",
            str(row.lost),
            *(f"{row.seconds.get(stage, 0.0):.1f}" for stage in ("design", "gate", "play")),
        )
        for row in facts.generations
    ]
    return _table(head, rows, left={4})


def _evictions(facts: RunFacts) -> str:
    if not facts.audits.requested and not facts.evictions:
        return ""
    head = ("environment", "generation", "from step", "plays void", "reason")
    rows = [(one.env_id, str(one.generation), str(one.step), str(one.voided), one.reason) for one in facts.evictions]
    table = _table(head, rows, left={0, 4}) if rows else ""
    return f"<h2>Audits and evictions</h2><p>{escape_html(audit_words(facts.audits, facts.evictions))}</p>{table}"


def _steps(facts: RunFacts) -> str:
    roles = ("agent", "designer")
    columns = [f"{role} {what}" for role in roles for what in ("samples", "loss", "ESS", "lag")]
    phases = sorted({phase for step in facts.steps for phase in step.seconds})
    free = any(step.stale or step.asked_again for step in facts.steps)
    rows: list[list[str]] = []
    for step in facts.steps:
        row = [f"{step.step}{' (drain)' if step.drain else ''}", str(step.step + 1), f"{step.loss:+.4f}"]
        for role in roles:
            found = step.roles.get(role)
            row += [str(found.samples), f"{found.loss:+.4f}", f"{found.ess:.4f}", str(found.lag)] if found else ["-"] * 4
        row += [f"{step.seconds.get(phase, 0.0):.2f}" for phase in phases]
        rows.append(row + ([str(step.stale), str(step.asked_again)] if free else []))
    extra = ("too old", "played again") if free else ()
    return _table(("step", "publishes policy", "loss", *columns, *(f"{phase} s" for phase in phases), *extra), rows)


def _example(example: ExampleFacts) -> str:
    return (
        f"<h3>{escape_html(example.title)}</h3><p>Generation {example.generation}, skill {escape_html(example.skill)}: "
        f"won {example.win_rate:.0%} without hint, {example.hint_win_rate:.0%} with it, regret {example.regret:+.2f}. "
        f"Its id: {escape_html(example.env_id)}</p>"
        f"<pre>{escape_html(example.source, 32768)}</pre><p><b>Hint:</b> {escape_html(example.hint)}</p>"
    )


def _episode(episode: EpisodeFacts) -> str:
    lines = [f"<b>hint</b>  {escape_html(episode.hint)}"] if episode.hint else []
    for turn in episode.turns:
        lines.append(f"<span class=who>environment</span>  {escape_html(turn.observation)}")
        lines.append(
            f"<span class=who>agent</span>  <b>{escape_html(turn.action)}</b>   <span class=who>reward {turn.reward:+.2f}</span>"
        )
    lines.append(f"<span class=who>environment</span>  {escape_html(episode.final_observation)}")
    text = "\n".join(lines)
    return (
        f"<h2>One episode in full</h2><p>Step {episode.step}, {'with' if episode.arm == 'hint' else 'without'} hint; ended "
        f"by {escape_html(episode.end_reason)} with return {episode.episode_return:+.2f} "
        f"({'won' if episode.won else 'not won'}).</p>"
        f"<pre>{text}</pre>"
    )
