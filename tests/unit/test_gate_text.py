"""The gate without a jail: static rules, leaks, source skeletons, and hostile text for people."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.plaintext import escape, escape_html, escape_line
from infra.sourcetext import normalise, signature, similarity
from workers.gate import leaks
from workers.gate.rules import GateRule, Refused
from workers.gate.static import ALLOWED_IMPORTS, check_static, cut_solution

ENVIRONMENTS = Path(__file__).parents[1] / "environments"
SUM = (ENVIRONMENTS / "sum_puzzle.py").read_text()
BODY = "rng = random.Random(seed)"


def rule_of(source: str) -> GateRule | None:
    """The static rule that refuses, or None."""
    try:
        check_static(source, ALLOWED_IMPORTS)
    except Refused as refused:
        return refused.rule
    return None


@pytest.mark.parametrize("path", sorted(ENVIRONMENTS.glob("*.py")), ids=lambda path: path.stem)
def test_honest_source_passes_and_its_play_text_lacks_solution_alone(path: Path) -> None:
    source = path.read_text()
    assert rule_of(source) is None
    play = cut_solution(source)
    assert "def solution" not in play
    assert "def step" in play
    assert source.startswith(play[: play.index("class ")])
    compile(play, "play", "exec")


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("calls", "eval('1')"),
        ("calls", "f = exec"),
        ("calls", "compile('1', '', 'eval')"),
        ("calls", "open('x')"),
        ("calls", "input()"),
        ("calls", "getattr(self, 'a' + 'b')"),
        ("calls", "getattr(self, '_hidden')"),
        ("calls", "globals()"),
        ("calls", "id(self)"),
        ("calls", "hash('x')"),
        ("calls", "random.SystemRandom()"),
        ("printing", "print('x')"),
        ("dunder", "self.__dict__"),
        ("dunder", "(lambda: 0).__globals__"),
        ("dunder", "'{0.__class__}'.format(self)"),
        ("dunder", "x.f_back"),
        ("imports", "import os"),
        ("imports", "import gc"),
        ("imports", "import inspect"),
        ("imports", "import time"),
        ("imports", "from random import _os"),
        ("imports", "random._os"),
        ("imports", "from collections import *"),
        ("globals", "global SEEN"),
        ("shared-state", "SumEnv.count = 1"),
        ("shared-state", "f = lambda x=[]: x"),
        ("shared-state", "type(self).seen.append(1)"),
        ("shared-state", "f = lambda x=([],): x"),
        ("imports", "tools = random"),
        ("imports", "(lambda: random)()"),
        ("imports", "[m for m in [random]]"),
        ("imports", "[random for m in range(3)]"),
        ("imports", "str(random)"),
        ("calls", "from operator import attrgetter\n        attrgetter('_x')(self)"),
        ("calls", "hasattr(self, '__init__'[1:])"),
        ("calls", "getattr(self, 'f_back')"),
        ("calls", "from string import Formatter"),
        ("dunder", "match self:\n            case object(f_back=x):\n                pass"),
    ],
)
def test_forbidden_line_is_refused_by_its_rule(rule: str, line: str) -> None:
    assert rule_of(SUM.replace(BODY, f"{line}\n        {BODY}")) == rule


@pytest.mark.parametrize(
    "line",
    [
        "random = seed\n        rng = random",
        "rng = (lambda random: random)(seed)",
        "open = [random.random() for _ in range(3)]",
        "rng = [random for random in range(3)]",
        "rng = sorted([(1, 2)], key=operator.itemgetter(0))",
        "rng = operator.attrgetter('answer')(self), operator.methodcaller('reset', 3)",
        "rng = getattr(self, 'answer', 0), random.random, copy.copy(seed), collections.abc.Mapping",
        "self.id, self.open, self.eval = 1, 2, 3",
    ],
)
def test_honest_line_passes_the_static_rules(line: str) -> None:
    needed = "import collections.abc\nimport copy\nimport operator\nimport random\n"
    assert rule_of(SUM.replace("import random\n", needed, 1).replace(BODY, line)) is None


def test_lines_that_end_as_on_windows_are_cut_as_others() -> None:
    play = cut_solution(SUM.replace("\n", "\r\n"))
    assert play.replace("\r\n", "\n") == cut_solution(SUM)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("contract", "def"),
        ("contract", "x = 1"),
        ("contract", SUM + "\nclass OtherEnv:\n    pass\n"),
        ("contract", SUM.replace("max_turns=25", "max_turns")),
        ("contract", SUM.replace("max_turns=25", "max_turns=9")),
        ("contract", SUM.replace("seed=None", "*seeds")),
        ("contract", SUM.replace("(self, action)", "(self, action, more)")),
        ("contract", SUM.replace("def solution(self)", "async def solution(self)")),
        ("contract", "\x00"),
        ("contract", "(" * 3000),
        ("module-work", SUM + "\nfor n in range(3):\n    pass\n"),
        ("module-work", SUM + "\nrandom.seed(1)\n"),
        ("shared-state", SUM + "\nSumEnv.count = 1\n"),
        ("module-work", SUM + "\n\ndef note():\n    pass\n\n\nnote.count = 1\n"),
        (
            "imports",
            SUM.replace("class SumEnv", "from statistics import random as more\n\n\nclass SumEnv").replace(BODY, "x = more"),
        ),
        ("imports", SUM.replace("class SumEnv:", "class SumEnv:\n    random = random")),
        ("contract", SUM.replace("import random", "import random  # a\r# b", 1)),
        ("module-work", SUM + "\nVALUE = random.random()\n"),
        ("async", SUM + "\n\nasync def f():\n    pass\n"),
        ("dunder", SUM.replace("class SumEnv", "class SumEnv(metaclass=type)")),
        ("size", SUM + "#" * 33000),
    ],
)
def test_source_outside_the_contract_is_refused_by_its_rule(rule: str, source: str) -> None:
    assert rule_of(source) == rule


@given(st.text(max_size=200))
def test_any_text_is_judged_or_refused_by_the_static_rules(text: str) -> None:
    rule_of(text)
    rule_of(SUM.replace("Right.", text))


@pytest.mark.parametrize(
    "line",
    [
        "x = " + " + ".join(["1"] * 1500),
        "x = self" + ".a" * 1500,
        "x = self" + "[0]" * 1500,
        "x = " + "lambda: " * 900 + "0",
        "x = " + "-" * 2500 + "1",
    ],
    ids=["sum", "attributes", "subscripts", "functions", "signs"],
)
def test_source_that_is_nested_too_deeply_to_be_read_is_refused(line: str) -> None:
    assert rule_of(SUM.replace(BODY, f"{BODY}\n        {line}")) == "contract"


def test_thousands_of_changes_of_a_name_are_read_in_one_walk() -> None:
    """Each is looked up, and none searched for: the time is not what is asserted, but ten thousand walks would take hours."""
    nested = "".join(" " * depth + f"def inner{depth}():\n" for depth in range(60))
    changes = ";".join(["t[0]=0"] * 3500)
    local = f"{SUM}\nt = 1\n\n{nested}{' ' * 60}t=[0];{changes}\n"
    assert len(local) < 32 * 1024
    assert rule_of(local) is None
    assert rule_of(local.replace("t=[0];", "")) == "globals"


def test_name_is_local_where_a_function_around_it_binds_it() -> None:
    module = "\nT = [0]\n"
    assert rule_of(f"{SUM}{module}\ndef f(T):\n    T[0] = 1\n") is None
    assert rule_of(f"{SUM}{module}\ndef f():\n    T = [1]\n    def g():\n        T[0] = 1\n    return g\n") is None
    assert rule_of(f"{SUM}{module}\ndef f():\n    T[0] = 1\n") == "globals"
    assert rule_of(f"{SUM}{module}\ndef f(T):\n    return T\n\ndef g():\n    T[0] = 1\n") == "globals"


def test_solution_is_cut_by_the_tree_not_by_its_looks() -> None:
    source = SUM.replace("def step", "def note(self):\n        return 'def solution(self): pass'\n\n    def step")
    play = cut_solution(source)
    assert "'def solution(self): pass'" in play
    assert "    def solution" not in play


def test_renamed_copy_is_similar_and_another_environment_is_not() -> None:
    renamed = SUM.replace("SumEnv", "TotalEnv").replace("answer", "total").replace("rng", "dice").replace("90", "77")
    other = (ENVIRONMENTS / "higher_lower.py").read_text()
    assert normalise(renamed) == normalise(SUM)
    assert similarity(signature(renamed), signature(SUM)) == 1.0
    assert similarity(signature(other), signature(SUM)) < 0.5


@given(st.text(max_size=100))
def test_any_text_has_a_skeleton_and_a_signature(text: str) -> None:
    assert len(signature(text)) == 64
    assert normalise(text) == normalise(text)


def test_signature_is_the_same_on_every_machine() -> None:
    assert signature("x = 1\n")[:3] == signature("longer_name = 99999  # told\n")[:3]


@pytest.mark.parametrize(
    ("actions", "around"),
    [
        (["\\boxed{12}", "\\boxed{7}"], ("\\boxed{", "}")),
        (["\\boxed{12}", "\\boxed{17}"], ("\\boxed{", "}")),
        (["\\boxed{5}"], ("\\boxed{", "}")),
        (["<answer>up</answer>", "<answer>down</answer>"], ("<answer>", "</answer>")),
        (["red", "blue"], ("", "")),
        (["reading", "riding"], ("", "")),
    ],
)
def test_wrapper_of_actions_is_what_stands_around_their_answers(actions: list[str], around: tuple[str, str]) -> None:
    assert leaks.wrapper(actions) == around


@pytest.mark.parametrize("form", ["47", "forty 47!", "74", "4-7", "0x2f", "four seven", "NDc", "3437"])
def test_answer_is_found_in_a_hint_in_each_form(form: str) -> None:
    assert leaks.hint_holds(f"Try {form} first.", "47")


@pytest.mark.parametrize(
    "form",
    ["forty-seven", "forty seven", "fortyseven", "XLVII", "40 + 7", "50 minus 3", "x47y", "4\u200b7", "\uff14\uff17", "GQ3Q"],
)
def test_answer_is_found_in_a_hint_in_disguise(form: str) -> None:
    assert leaks.hint_holds(f"Try {form} now.", "47")


def test_word_is_found_in_a_hint_with_its_alphabet_shifted() -> None:
    assert leaks.hint_holds("Try zneoyr.", "marble")
    assert not leaks.hint_holds("Try zneoyr.", "walnut")


def test_word_that_only_the_hint_tells_is_secret_and_one_that_the_observation_tells_is_not() -> None:
    plays = [(["zorblax 12"], ["Add 5 and 7."]), (["zorblax 9"], ["Add 4 and 5."])]
    assert leaks.secret_words("Write zorblax first.", plays) == {"zorblax": 2}
    assert leaks.secret_words("Write xalbroz backwards.", plays) == {"zorblax": 2}
    assert leaks.secret_words("Add the two.", plays) == {}
    assert (
        leaks.secret_words("Write zorblax first.", [(actions, [*shown, "Begin with ZORBLAX."]) for actions, shown in plays]) == {}
    )


def test_numbers_too_long_to_be_shown_are_no_texts_to_try() -> None:
    assert leaks.source_texts(f"x = 0x{'f' * 8000}\ny = 123456", "") == ["123456"]
    assert not leaks.hint_holds("2 + 2", "9" * 5000)
    assert leaks.hint_holds("2 + 2", "4")


def test_texts_to_try_come_from_source_and_hint_those_of_both_first() -> None:
    source = SUM.replace(BODY, f"{BODY}\n        if seed == 4711 or str(seed) == 'sesame':\n            pass")
    assert leaks.source_texts(source, "Say sesame.")[0] == "sesame"
    assert "4711" in leaks.source_texts(source, "")
    assert leaks.shared_texts(source, "Say sesame.") == ["sesame"]
    assert {"Say 'open up'.", "open up", "pu nepo"} <= set(leaks.hint_texts("Say 'open up'.", source))
    assert leaks.hint_texts(" ", source) == []


@pytest.mark.parametrize("hint", ["Use 471 steps.", "Halve the range.", ""])
def test_answer_is_not_found_where_it_does_not_stand(hint: str) -> None:
    assert not leaks.hint_holds(hint, "47")


@pytest.mark.parametrize("text", ["value: 47", "74 mirrored", "code 0x2f", "say '47'", "it is NDc="])
def test_some_copier_reads_the_answer_out_of_the_observation(text: str) -> None:
    assert "47" in {leaks.fold(found) for found in leaks.copies(text).values()}


@given(st.text(max_size=300))
def test_copiers_take_any_observation(text: str) -> None:
    assert all(isinstance(found, str) for found in leaks.copies(text).values())


@given(st.text("ab_7\u0663\u00b2\u00e9. ", max_size=30), st.text("ab_7\u0663\u00b2\u00e9. ", min_size=1, max_size=3))
def test_form_stands_in_a_text_where_its_pattern_does(text: str, form: str) -> None:
    around = r"(?<!\d)%s(?!\d)" if form.isascii() and form.isdigit() else r"(?<![^\W_])%s(?![^\W_])"
    assert leaks._stands_in(form, text) == bool(re.search(around % re.escape(form), text))


@given(st.text(max_size=300))
def test_escaped_text_holds_nothing_that_acts(text: str) -> None:
    shown = escape(text)
    assert all(character == "\n" or character.isprintable() for character in shown)
    assert "\n" not in escape_line(text)
    assert not set("<>\"'") & set(escape_html(text))


def test_escape_names_what_it_hides_and_cuts_at_the_limit() -> None:
    assert escape("\x1b[31m\u202e\x00") == "\\x1b[31m\\u202e\\x00"
    assert escape("a" * 30, 10) == "a" * 10 + "... (20 characters more)"
    assert escape_html("<b>&") == "&lt;b&gt;&amp;"
