"""Planted faults: environments that are bad in one way each, with the rule that has to refuse them.

Most are an honest environment with one change. Plain faults stand here, those of a cunning designer in planted_cunning.py. Read
by the gate's tests.
"""

from __future__ import annotations

from pathlib import Path

from infra.actions import ActionForm

ENVIRONMENTS = Path(__file__).parent / "environments"
SUM = (ENVIRONMENTS / "sum_puzzle.py").read_text()
HINT = "Work in small steps and keep what you have found so far in mind."
RETURN = 'return ("Right." if right else "Wrong."), (1.0 if right else 0.0), True, False, {}'


def changed(*changes: tuple[str, str], source: str = SUM) -> str:
    """An honest environment, by default the sum puzzle, with a fault planted."""
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


PLAIN: dict[str, tuple[str, str]] = {
    "always pays": ("silent", changed(("(1.0 if right else 0.0)", "1.0"))),
    "never pays": ("witness", changed(("(1.0 if right else 0.0)", "0.0"))),
    "ignores the seed": ("seed", changed(("random.Random(seed)", "random.Random(5)"))),
    "draws without the seed": ("replay", changed(("random.Random(seed)", "random.Random()"))),
    "depends on hash order": (
        "replay",
        changed(('return f"Add {a} and {b}. ', "return str(list({'ab', 'cd', 'ef', 'gh', 'ij'})) + f\"Add {a} and {b}. ")),
    ),
    "depends on address order": ("replay", changed(('return f"Add', 'return repr([].append) + f"Add'))),
    "depends on global random numbers": ("replay", changed(('return f"Add', 'return str(random.random()) + f"Add'))),
    "pays infinity": ("types", changed(("1.0 if right", "1e999 if right"))),
    "pays not a number": (
        "types",
        changed(("1.0 if right", "math.nan if right"), ("import random", "import math\nimport random")),
    ),
    "pays too much": ("types", changed(("1.0 if right", "2.0 if right"))),
    "pays a bool": ("types", changed(("(1.0 if right else 0.0)", "right"))),
    "observes a number": ("types", changed(('("Right." if right else "Wrong.")', "7"))),
    "tells by info": (
        "info",
        changed(("True, False, {}\n\n    def solution", "True, False, {'answer': self.answer}\n\n    def solution")),
    ),
    "tells by the first info": ("info", changed(('in \\\\boxed{{}}.", {}', "in \\\\boxed{{}}.\", {'answer': self.answer}"))),
    "never ends": (
        "ends",
        changed(
            (RETURN, 'return ("Right." if right else "Wrong."), (1.0 if right else 0.0), right, False, {}'),
            ("self.over = True\n        right = action", "right = self.over = action"),
        ),
    ),
    "pays after the end": ("after-end", changed(('return "Over.", 0.0, True', 'return "Over.", 1.0, True'))),
    "prints the answer": ("copier", changed(("Answer in", "The answer is {a + b}. Answer in"))),
    "prints the answer reversed": ("copier", changed(("Answer in", "Mirror: {str(a + b)[::-1]}. Answer in"))),
    "prints the answer in hexadecimal": ("copier", changed(("Answer in", "Code: {(a + b):x}. Answer in"))),
    "has one answer for all seeds": ("other-witness", changed(("self.answer = a + b", "self.answer = 7"))),
    "raises on odd actions": (
        "survives",
        changed(("right = action.strip()", "int(action.strip()[7:-1] or 'x') if action else 0\n        right = action.strip()")),
    ),
    "raises in the witness's play": ("runs", changed(("right = action.strip()", "1 / 0\n        right = action.strip()"))),
    "witness raises": ("witness", changed(('return ["\\\\boxed{"', 'return 1 / 0 or ["\\\\boxed{"'))),
    "witness gives no list": ("types", changed(('return ["\\\\boxed{" + str(self.answer) + "}"]', "return str(self.answer)"))),
    "wins only where solution was called": (
        "witness",
        changed(
            ('return ["\\\\boxed{"', 'self.asked = True\n        return ["\\\\boxed{"'),
            ("right = action.strip()", "right = hasattr(self, 'asked') and action.strip()"),
        ),
    ),
    "loops": ("jail", changed(("right = action.strip()", "while True:\n            pass\n        right = action.strip()"))),
    "eats memory": ("jail", changed(("right = action.strip()", "hoard = bytearray(1 << 30)\n        right = action.strip()"))),
    "easy to guess": ("other-witness", changed(("self.answer = a + b", "self.answer = 1 + (a % 9 == 0)"))),
    "reads a file": ("calls", changed(("rng = random", "text = open('/etc/passwd').read()\n        rng = random"))),
    "reads the environment": ("imports", changed(("import random", "import os\nimport random"))),
    "reads the clock": ("imports", changed(("import random", "import time\nimport random"))),
    "keeps state in the class": (
        "shared-state",
        changed(
            ("class SumEnv:\n", "class SumEnv:\n    seen = []\n"),
            ("rng = random", "self.seen.append(seed)\n        rng = random"),
        ),
    ),
    "keeps state in the module": (
        "globals",
        changed(("class SumEnv", "SEEN = []\n\n\nclass SumEnv"), ("rng = random", "SEEN.append(seed)\n        rng = random")),
    ),
    "lacks solution": ("contract", changed(("def solution", "def resolve"))),
    "walks to the frame": ("dunder", changed(("rng = random", "().__class__\n        rng = random"))),
    "prints": ("printing", changed(("rng = random", "print(seed)\n        rng = random"))),
    "is too long": ("size", SUM + "#" * 33000),
}


TOOLS = (Path(__file__).parents[1] / "infra/examples/tools/stock_levels.py").read_text()
GAME = (Path(__file__).parents[1] / "infra/examples/games/robot_walk.py").read_text()
ANSWERED = 'return None, "Error: the call is not JSON."'
# name: (form of the setting, source, what the evidence says)
FORMS: dict[str, tuple[ActionForm, str, str]] = {
    "takes a bare word in games": (
        "games",
        changed(
            ('"\\\\boxed{" + word + "}" for word', "word for word"),
            ('text[7:-1] if text.startswith("\\\\boxed{") and text.endswith("}") else ""', "text"),
            source=GAME,
        ),
        "no box",
    ),
    "takes text around the box": (
        "games",
        changed(
            (
                'right = action.strip() == "\\\\boxed{" + str(self.answer) + "}"',
                'right = action.strip() == "is \\\\boxed{" + str(self.answer) + "}"',
            ),
            ('return ["\\\\boxed{" + str(self.answer) + "}"]', 'return ["is \\\\boxed{" + str(self.answer) + "}"]'),
        ),
        "text around the block",
    ),
    "plays a game by tools": ("tools", GAME, "no call and no answer"),
    "does not describe a tool": (
        "tools",
        changed(("count(shelf: string) tells", "one tool tells"), source=TOOLS),
        "does not describe the tool 'count'",
    ),
    "lets the witness call loosely": (
        "tools",
        changed(
            ('set(call) != {"name", "arguments"}', 'not {"name", "arguments"} <= set(call)'),
            ('calls = [{"name": "count",', 'calls = [{"id": 1, "name": "count",'),
            source=TOOLS,
        ),
        "without exactly a name and arguments",
    ),
    "ends at a malformed call": (
        "tools",
        changed(
            (
                "return self.call(text), 0.0, False, False, {}",
                'told = self.call(text)\n        return told, 0.0, "not JSON" in told, False, {}',
            ),
            source=TOOLS,
        ),
        "is to be answered, but the episode ends",
    ),
    "says nothing to a malformed call": (
        "tools",
        changed((ANSWERED, 'return None, ""'), source=TOOLS),
        "is to be answered, but nothing is answered",
    ),
    "breaks at a malformed call": (
        "tools",
        changed(("except (ValueError, RecursionError):", "except RecursionError:"), source=TOOLS),
        "JSONDecodeError",
    ),
    "breaks at arguments of another type": (
        "tools",
        changed(
            ('takes(arguments, shelf=str) and arguments["shelf"] in self.stock', 'arguments["shelf"] in self.stock'), source=TOOLS
        ),
        "KeyError",
    ),
    "has no tool": (
        "tools",
        changed(
            ('calls = [{"name": "count", "arguments": {"shelf": shelf}} for shelf in self.SHELVES]', "calls = []"),
            ('calls.append({"name": "move", "arguments": {"source": source, "target": target, "boxes": boxes}})', "pass"),
            ("self.wanted = dict(self.stock)", "self.wanted = self.stock"),
            (
                'right = self.stock == self.wanted and text[8:-9].strip() == "done"',
                'right = text[8:-9].strip() == str(self.wanted["east"])',
            ),
            ('["<answer>done</answer>"]', '["<answer>" + str(self.wanted["east"]) + "</answer>"]'),
            source=TOOLS,
        ),
        "calls no tool",
    ),
}
