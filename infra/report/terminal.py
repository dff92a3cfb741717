"""The report in the terminal. In: facts. Out: rich tables; everything that a model wrote is escaped."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.markup import escape as escape_markup
from rich.panel import Panel
from rich.table import Table

from infra.plaintext import escape, escape_line
from infra.report.facts import (
    AuditFacts,
    EpisodeFacts,
    EvaluationFacts,
    EvictionFacts,
    ExampleFacts,
    GateFacts,
    GenerationFacts,
    RunFacts,
    StepFacts,
)


def show(facts: RunFacts, console: Console) -> None:
    """Prints the whole report."""
    parts: list[RenderableType] = [generation_table(facts.generations), step_table(facts.steps)]
    parts.append(Panel(escape_markup(alarm_words(facts)), title="Alarms", title_align="left"))
    if facts.gate.judged:
        parts.append(Panel(escape_markup(gate_words(facts.gate)), title="The gate's cost", title_align="left"))
    if facts.audits.requested or facts.evictions:
        parts.append(eviction_panel(facts.audits, facts.evictions))
    parts += map(_example, facts.examples)
    if facts.episode is not None:
        parts.append(_episode(facts.episode))
    if facts.evaluation is not None:
        parts.append(Panel(escape_markup(verdict(facts.evaluation)), title="Did it learn?"))
    console.rule(escape_markup(f"Report of run {escape_line(facts.run_id)}"))
    for part in parts:
        console.print(part, soft_wrap=False)


def verdict(found: EvaluationFacts) -> str:
    """The evaluation in words."""
    if found.low > 0:
        meaning = "The whole interval lies above zero: the gain is not chance."
    elif found.high < 0:
        meaning = "The whole interval lies below zero: the policy got worse."
    else:
        meaning = "The interval holds zero: from this run alone one can't tell whether it learned."
    return (
        f"On {found.items} fresh task instances that were never trained on, the agent won {found.before:.1%} before training "
        f"(policy {found.version_before}) and {found.after:.1%} after it (policy {found.version_after}). Both played the same "
        f"instances, so the difference is paired: {found.difference:+.1%}, 95 % interval [{found.low:+.1%}, {found.high:+.1%}] "
        f"(clustered by {found.clusters} environments). {meaning}"
    )


def alarm_words(facts: RunFacts) -> str:
    """The alarms, or that there is none; and hints that went uncredited, where the recipe has them checked."""
    lines = [f"- {alarm}" for alarm in facts.alarms] or [
        "None: staleness, effective sample size, diversity and regret are in bounds."
    ]
    if facts.uncredited >= 0:
        lines.append(f"Regret went uncredited for {facts.uncredited} designs: their hints did not help the earlier policy.")
    return "\n".join(lines)


def gate_words(gate: GateFacts) -> str:
    """What the judgements cost, in words."""
    taken = f" {gate.taken} more designs were judged already and took that verdict." if gate.taken else ""
    return (
        f"{gate.judged} designs were judged. The median judgement took {gate.median_cpu_s:.3f} s of CPU, its jails' included "
        f"(most: {gate.most_cpu_s:.3f} s, together {gate.total_cpu_s:.1f} s), and {gate.median_wall_s:.3f} s of time.{taken}"
    )


def audit_words(audits: AuditFacts, evictions: list[EvictionFacts]) -> str:
    """What the audits found, in words."""
    lost = f", {audits.lost} were lost to the machine" if audits.lost else ""
    found = (
        f"{audits.finished} of {audits.requested} audited plays were repeated in a fresh jail: {audits.differing} differed{lost}."
    )
    if not evictions:
        return f"{found} No environment was evicted."
    voided = sum(one.voided for one in evictions)
    told = f"Environments evicted: {len(evictions)}; their {voided} plays from then on were not trained, and the designs earn 0."
    return f"{found} {told}"


def eviction_panel(audits: AuditFacts, evictions: list[EvictionFacts]) -> Panel:
    """What the audits found, and each environment that was taken out."""
    lines = [audit_words(audits, evictions)]
    for one in evictions:
        where = f"generation {one.generation}, from step {one.step} on, {one.voided} plays void"
        lines.append(f"- {escape_line(one.env_id)} ({where}): {escape_line(one.reason, 500)}")
    return Panel(escape_markup("\n".join(lines)), title="Audits and evictions", title_align="left")


def generation_table(rows: list[GenerationFacts]) -> Table:
    """One row a generation."""
    table = Table(title="Generations: what the designer wrote and how the agent played it", title_justify="left")
    for name in (
        "gen",
        "by",
        "valid",
        "refused",
        "win",
        "with hint",
        "regret ± SE",
        "reward",
        "Vendi/n",
        "s: design, gate, play",
    ):
        table.add_column(name, justify="left" if name.startswith("refused") else "right")
    for row in rows:
        rules = ", ".join(f"{escape_markup(escape_line(rule))} {count}" for rule, count in sorted(row.rejected.items())) or "-"
        table.add_row(
            str(row.generation),
            f"policy {row.policy_version}",
            f"{row.valid}/{row.proposed}",
            rules,
            f"{row.win_rate:.2f}",
            f"{row.hint_win_rate:.2f}",
            f"{row.regret:+.2f} ± {row.regret_se:.2f}",
            f"{row.designer_reward:.2f}",
            f"{row.vendi:.2f}",
            ", ".join(f"{row.seconds.get(stage, 0.0):.1f}" for stage in ("design", "gate", "play")),
        )
    return table


def step_table(rows: list[StepFacts]) -> Table:
    """One row an optimizer step."""
    table = Table(title="Optimizer steps: a batch each, and the policy that it published", title_justify="left")
    for name in ("step", "policy", "plays", "designs", "agent loss", "designer loss", "ESS", "lag in versions", "seconds"):
        table.add_column(name, justify="right")
    free = any(row.stale or row.asked_again for row in rows)
    if free:
        table.add_column("too old / played again", justify="right")
    for row in rows:
        agent, designer = row.roles.get("agent"), row.roles.get("designer")
        both = [role for role in (agent, designer) if role is not None]
        table.add_row(
            f"{row.step}{' (drain)' if row.drain else ''}",
            str(row.step + 1),
            str(agent.samples) if agent else "-",
            str(designer.samples) if designer else "-",
            f"{agent.loss:+.4f}" if agent else "-",
            f"{designer.loss:+.4f}" if designer else "-",
            " / ".join(f"{role.ess:.2f}" for role in both) or "-",
            " / ".join(str(role.lag) for role in both) or "-",
            f"{sum(value for phase, value in row.seconds.items() if phase != 'wait'):.1f}",
            *([f"{row.stale} / {row.asked_again}"] if free else []),
        )
    return table


def _example(example: ExampleFacts) -> Panel:
    numbers = f"win {example.win_rate:.2f}, with hint {example.hint_win_rate:.2f}, regret {example.regret:+.2f}"
    named = f"environment {escape_line(example.env_id)}"
    text = f"{escape(example.source, 8000)}\n\nhint: {escape_line(example.hint)}\n{numbers}\n{named}"
    title = f"{escape_line(example.title)} (generation {example.generation}, {escape_line(example.skill)})"
    return Panel(escape_markup(text), title=escape_markup(title), title_align="left")


def _episode(episode: EpisodeFacts) -> Panel:
    lines = []
    for turn in episode.turns:
        lines += [f"environment: {escape(turn.observation)}", f"agent:       {escape(turn.action)}   (reward {turn.reward:+.2f})"]
    lines.append(f"environment: {escape(episode.final_observation)}")
    ending = "won" if episode.won else "not won"
    lines.append(f"ended: {escape_line(episode.end_reason)}, return {episode.episode_return:+.2f}, {ending}")
    title = f"One episode in full, {'with' if episode.arm == 'hint' else 'without'} hint, step {episode.step}"
    if episode.hint:
        lines.insert(0, f"hint:        {escape_line(episode.hint)}")
    return Panel(escape_markup("\n".join(lines)), title=title, title_align="left")
