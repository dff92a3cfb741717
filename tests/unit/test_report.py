"""The report from made-up facts: words, numbers, escaping, one file without links, a picture."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from infra.report import page, picture, terminal
from infra.report.facts import (
    EpisodeFacts,
    EvaluationFacts,
    ExampleFacts,
    GateFacts,
    GenerationFacts,
    RoleFacts,
    RunFacts,
    StepFacts,
    TurnFacts,
)
from infra.report.interval import paired_difference

HOSTILE = "<script>alert(1)</script>\x1b[31mred [bold]\u202e"


def make_facts(low: float = 0.02) -> RunFacts:
    generations = [
        GenerationFacts(
            generation=number,
            proposed=32,
            valid=30 - number,
            rejected={"witness": number + 1, "parse": 1},
            win_rate=0.4,
            hint_win_rate=0.6,
            regret=0.2,
            regret_se=0.05,
            designer_reward=0.5,
            policy_version=max(0, number - 2),
            seconds={"design": 2.5, "gate": 1.25, "play": 7.0},
        )
        for number in range(3)
    ]
    roles = {"agent": RoleFacts(400, -0.01, 0.91, 1), "designer": RoleFacts(30, 0.02, 0.83, 3)}
    steps = [StepFacts(number, number == 3, "", 0.01, roles, {"forward": 1.0, "wait": 9.0}) for number in range(4)]
    example = ExampleFacts(
        "env-1", "The hint helped most here", "Optimization", 2, f"class AEnv: ...\n{HOSTILE}", HOSTILE, 0.3, 0.9, 0.6
    )
    turns = [TurnFacts(f"seen {HOSTILE}", f"done {HOSTILE}", 0.0), TurnFacts("seen again", "42", 1.0)]
    episode = EpisodeFacts("play-1", "env-1", "hint", 3, "halve the range", turns, "correct", 1.0, True, "terminated")
    families = {"chain": (0.25, 0.5)}
    evaluation = EvaluationFacts("nano", 1040, 0, 12, 0.37, 0.45, 0.08, low, 0.12, 208, families)
    return RunFacts("demo-1", "demo", 6.5, generations, steps, [example], episode, evaluation, {"episodes": 1200})


def shown(facts: RunFacts, width: int = 200) -> str:
    sink = io.StringIO()
    terminal.show(facts, Console(file=sink, width=width, force_terminal=False, soft_wrap=True))
    return sink.getvalue()


def test_terminal_report_tells_the_numbers() -> None:
    text = shown(make_facts())
    for part in (
        "28/32",
        "parse 1, witness 3",
        "+0.20 ± 0.05",
        "0.91 / 0.83",
        "1 / 3",
        "3 (drain)",
        "halve the range",
        "seen again",
        "42",
    ):
        assert part in text, part
    assert "won 37.0% before" in text
    assert re.search(r"gain\s+is\s+not\s+chance", text)


def test_terminal_and_page_tell_what_the_gate_cost() -> None:
    facts = replace(make_facts(), gate=GateFacts(96, 3, 0.1432, 0.5219, 14.64, 0.2513))
    drawn = b"no picture"
    for text in (shown(facts), page.write_page(facts, drawn)):
        told = " ".join(text.replace("│", " ").split())
        assert "96 designs were judged" in told
        assert "took 0.143 s of CPU" in told
        assert "most: 0.522 s, together 14.6 s" in told
        assert "3 more designs were judged already" in told
    assert "designs were judged" not in shown(make_facts())


def test_narrow_terminal_wraps_and_cuts_nothing_off() -> None:
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", shown(make_facts(), width=80)).split())
    assert terminal.verdict(make_facts().evaluation or pytest.fail("no evaluation")) in text
    assert "halve the range" in text


def test_interval_that_holds_zero_is_said_to_tell_nothing() -> None:
    evaluation = make_facts(low=-0.01).evaluation
    assert evaluation is not None
    assert "can't tell" in terminal.verdict(evaluation)


def test_page_is_one_file_and_escapes_what_models_wrote(tmp_path: Path) -> None:
    facts = make_facts()
    picture.draw(facts, tmp_path / "curves.png")
    drawn = (tmp_path / "curves.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    assert len(drawn) > 20_000
    text = page.write_page(facts, drawn)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert not re.search(r'(?:src|href)=(?!"data:)', text)
    assert "default-src" in text
    for part in ("28", "+0.200 ± 0.050", "chain", "25.0%", "halve the range", "1200", "data:image/png;base64,"):
        assert part in text, part


def test_terminal_shows_no_control_characters() -> None:
    text = shown(make_facts())
    assert "\x1b" not in text
    assert "\\x1b" in text
    assert "[bold]" in text


def test_empty_run_makes_a_report_too(tmp_path: Path) -> None:
    empty = RunFacts("demo-2", "demo", 0.1, [], [], [], None, None)
    picture.draw(empty, tmp_path / "curves.png")
    assert "demo-2" in page.write_page(empty, (tmp_path / "curves.png").read_bytes())
    assert "demo-2" in shown(empty)


def test_paired_difference_of_independent_instances_matches_the_textbook() -> None:
    before, after = bytes([0, 0, 1, 1] * 50), bytes([1, 0, 1, 0] * 25 + [1, 1, 1, 1] * 25)
    found = paired_difference(before, after, [str(number) for number in range(200)])
    assert found.mean == pytest.approx(0.25)
    differences = [b - a for a, b in zip(before, after, strict=True)]
    variance = sum((d - 0.25) ** 2 for d in differences) / 199
    assert (found.high - found.low) / 2 == pytest.approx(1.971957 * (variance / 200) ** 0.5)


def test_interval_widens_where_instances_of_a_cluster_agree() -> None:
    random = Random(1)
    shifts = [random.choice((0, 1)) for _ in range(100)]
    before, after = bytes(1000), bytes(shift for shift in shifts for _ in range(10))
    alone = paired_difference(before, after, [str(number) for number in range(1000)])
    grouped = paired_difference(before, after, [str(number // 10) for number in range(1000)])
    assert grouped.mean == alone.mean
    assert (grouped.high - grouped.low) / (alone.high - alone.low) == pytest.approx(10**0.5, rel=0.02)


def test_unpaired_results_are_refused() -> None:
    with pytest.raises(ValueError, match="pair"):
        paired_difference(b"\x00", b"\x00\x01", ["a"])
