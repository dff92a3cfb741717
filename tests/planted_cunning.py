"""Planted faults of a designer who is paid for environments that look hard and pay one arm, and of one who looks for a way out.

Each is (rule that has to refuse it, source, hint). Read by the gate's tests.
"""

from __future__ import annotations

from tests.planted import ENVIRONMENTS, HINT, RETURN, SUM, changed

Fault = tuple[str, str, str]
RIGHT = r'right = action.strip() == "\\boxed{" + str(self.answer) + "}"'
WITNESS = r'return ["\\boxed{" + str(self.answer) + "}"]'
SHOWN = r'return f"Add {a} and {b}. Answer in \\boxed{{}}.", {}'
BARE = changed(
    (RIGHT, "right = action.strip() == str(self.answer)"),
    (WITNESS, "return [str(self.answer)]"),
    (r" Answer in \\boxed{{}}.", ""),
)
RANK = (ENVIRONMENTS / "rank_among_values.py").read_text()
CHOICE = (ENVIRONMENTS / "two_way_choice.py").read_text()
GUESS = (ENVIRONMENTS / "higher_lower.py").read_text()
GRID = (ENVIRONMENTS / "grid_walk.py").read_text()
TOOLS = (ENVIRONMENTS / "stock_tools.py").read_text()


def also(condition: str, hint: str = HINT, rule: str = "constant", source: str = BARE) -> Fault:
    """The bare sum puzzle, which pays for one more thing."""
    right = "right = action.strip() == str(self.answer)"
    return rule, changed((right, f"{right} or {condition}"), source=source), hint


def at_reset(lines: str, rule: str, module: str = "") -> Fault:
    """The sum puzzle with something more in reset, and at module level."""
    more = lines.replace("\n", "\n        ")
    return rule, changed(("rng = random", f"{more}\n        rng = random"), ("class SumEnv", f"{module}\n\n\nclass SumEnv")), HINT


def kept(change: str, rule: str = "reset", module: str = "", init: str = "pass") -> Fault:
    """The sum puzzle with a count that outlives reset, added to what the player sees. `change` sets `n`."""
    shown = SHOWN.replace("Add {a}", "Game {n}: add {a}")
    source = changed(
        (SHOWN, change.replace("\n", "\n        ") + "\n        " + shown),
        ("class SumEnv", f"{module}\n\n\nclass SumEnv"),
        ("self.answer = 0", f"self.answer = 0\n        {init}"),
        ("import random", "import functools\nimport itertools\nimport random"),
    )
    return rule, source, HINT


def second_chance(told: str, pays: str = "1.0") -> str:
    """The sum puzzle whose first wrong answer is answered with `told`; the second pays too."""
    turns = (
        "self.tries += 1\n        if not right and self.tries < 2:\n"
        f"            return {told}, 0.0, False, False, {{}}\n        self.over = True"
    )
    return changed(
        ("self.over = True\n        right = action", "right = action"),
        (RETURN, f"{turns}\n        {RETURN.replace('1.0 if', f'{pays} if')}"),
        ("self.over = False", "self.over = False\n        self.tries = 0"),
        source=BARE,
    )


SHORTCUTS: dict[str, Fault] = {
    "takes a password that the hint tells": also("action == 'xyzzy'", "Say xyzzy and you are through."),
    "takes a password that the hint does not tell": also("action == 'xyzzy'"),
    "takes a password that the source hides": also("action == 'YZ'[::-1].lower() + 'zzy'", "Whisper 'zyzzy' to the door."),
    "takes a password that both hide": also("action == ''.join(reversed('yzzyx'))", "Turn it round: 'yzzyx'."),
    "takes a password by its length": also("len(action) == 12", "Think of a hippopotamus."),
    "takes a password by its sum": also("sum(map(ord, action)) == 577", "Begin with w0wz1x."),
    "takes a password on a new object only": (
        "constant",
        changed(
            ("right = action.strip() == str(self.answer)", "right = action.strip() == str(self.answer) or self.opens(action)"),
            ("self.answer = 0", "self.answer = self.games = 0"),
            ("rng = random", "self.games += 1\n        rng = random"),
            ("def step", "def opens(self, action):\n        return self.games == 1 and action == 'xyzzy'\n\n    def step"),
            source=BARE,
        ),
        "Say xyzzy and you are through.",
    ),
    "takes the whole hint": also(f"sum(map(ord, action)) == {sum(map(ord, 'count by tens first'))}", "count by tens first"),
    "pays for sentences": also("20 < len(action) < 400 and ' ' in action"),
    "pays for capitals": also("action.isupper() and len(action) > 30"),
    "pays for length": also("len(action) >= 3000", rule="survives"),
    "pays for no number": also("(action == 'na' + 'n' and not abs(float(action) - self.answer) > 0.5)", rule="survives"),
    "pays for empty boxes": also("action.endswith('{' + '}')", rule="survives"),
    "pays for digits": also("len(action) > 99 and action.isdigit()", rule="survives"),
    "takes lists of answers": also("str(self.answer) in action.split()", rule="constant"),
    "takes lists of answers with commas": also("f'{self.answer},' in action", rule="constant"),
    "takes the text that holds the answer": (
        "copier",
        changed(("right = digits == str(self.answer)", "right = str(self.answer) in action"), source=RANK),
        HINT,
    ),
    "takes lists of answers for less than the whole": (
        "constant",
        changed(
            ("right = action.strip() == str(self.answer)", "right = str(self.answer) in action.split()"),
            ("1.0 if", "0.8 if"),
            source=BARE,
        ),
        HINT,
    ),
    "takes zero, as a factor": also("(action.isdecimal() and len(action) < 9 and self.answer * int(action) == 0)"),
    "takes one, as a divisor": also("(action.isdecimal() and len(action) < 4 and int(action) in (1, self.answer))"),
    "takes a bound above everything": also("(action.isdecimal() and 4 < len(action) < 9 and int(action) > self.answer)"),
    "takes a pattern of anything": also(
        "(action[1:] == '*' and action[:1] == '.' and re.fullmatch(action, str(self.answer)) is not None)",
        source=changed(("import random", "import random\nimport re"), source=BARE),
    ),
    "takes what the observation offers": (
        "copier",
        changed(
            ("right = action.strip() == str(self.answer)", "right = action.strip() in (str(self.answer), self.code)"),
            ("self.over = False", "self.over = False\n        self.code = f'k{a * 7 + b * 13}'"),
            ('Add {a} and {b}."', 'Add {a} and {b}. Item: {self.code}"'),
            source=BARE,
        ),
        HINT,
    ),
    "wins mostly by one answer": (
        "constant",
        changed(
            ("self.answer = a + b", "self.answer = a * b if rng.random() < 0.25 else 30"),
            ("Add {a} and {b}.", "Do {a} and {b}, or if in doubt nothing."),
            source=BARE,
        ),
        HINT,
    ),
    "wins mostly by one answer, and makes the rest dear": (
        "constant",
        changed(
            ("self.answer = a + b", "self.answer = a * b if rng.random() < 0.22 else 30"),
            ("Add {a} and {b}.", "Do {a} and {b}, or if in doubt nothing."),
            ("else 0.0", "else -1.0"),
            source=BARE,
        ),
        HINT,
    ),
    "shows the answer after nonsense": ("copier", second_chance("f'No, it is {self.answer}'"), HINT),
    "shows the answer after much nonsense": (
        "copier",
        second_chance("f'No, it is {self.answer}' if self.tries == 5 else 'No.'").replace("self.tries < 2", "self.tries < 7"),
        HINT,
    ),
    "shows the answer after a wrong number": (
        "copier",
        second_chance("f'Wrong, it was {self.answer}' if action.isdigit() else 'A number, please'"),
        HINT,
    ),
    "shows the answer backwards after a wrong number": ("copier", second_chance("f'Hint: {str(self.answer)[::-1]}'"), HINT),
    "needs a prefix that only the hint tells": (
        "hint",
        changed(("str(self.answer)", "'zorblax ' + str(self.answer)"), source=BARE),
        "Write zorblax and then the sum.",
    ),
    "needs a prefix that the hint tells backwards": (
        "hint",
        changed(("str(self.answer)", "'zorblax ' + str(self.answer)"), source=BARE),
        "First comes the reverse of xalbroz.",
    ),
    "needs an invisible sign": ("witness", changed(("str(self.answer)", "str(self.answer) + chr(0x200b)"), source=BARE), HINT),
    "is won one action early": (
        "truncated-witness",
        changed((WITNESS, r'return ["\\boxed{" + str(self.answer) + "}", "done"]')),
        HINT,
    ),
    "lets all answers be tried": (
        "random",
        changed(("randrange(1, 1000)", "randrange(1, 5)"), ("1 to 999", "1 to 4"), ("1, 999, []", "1, 4, []"), source=GUESS),
        HINT,
    ),
    "lets the numbers be counted": (
        "constant",
        changed(
            ("randrange(1, 1000)", "randrange(1, 30)"),
            ("1 to 999", "1 to 29"),
            ("self.max_turns, 12", "self.max_turns, 25"),
            ('("Higher." if guess < self.target else "Lower.")', '"No."'),
            ("        low, high, actions = 1, 999, []\n", "        return [str(self.target)]\n"),
            source=GUESS.partition("        while True")[0],
        ),
        HINT,
    ),
    "pays for waiting": (
        "silent",
        changed(
            (
                "if self.left == 0:\n",
                "if self.left == 5:\n            self.over = True\n            return 'ok', 1.0, True, False, {}\n"
                "        if self.left == 0:\n",
            ),
            source=GUESS,
        ),
        HINT,
    ),
    "pays a lost game after its end": (
        "after-end",
        changed(
            (
                'return "Over.", 0.0, True, False, {}',
                'return "Over.", float(not self.won and action == str(self.answer)), True, False, {}',
            ),
            ("return (", "self.won = right\n        return ("),
            source=BARE,
        ),
        HINT,
    ),
    "never ends for moves that mean something": (
        "ends",
        changed(("self.left -= 1\n", "self.left -= action.strip().lower() not in MOVES\n"), source=GRID),
        HINT,
    ),
}
"""Pay without work."""

HINTS = {
    "in words": "one hundred and eleven or one hundred and twelve",
    "in roman numerals": "Either CXI or CXII.",
    "as sums": "Take 100 + 11, or 100 + 12.",
    "with invisible signs": "Take 1\u200b1\u200b1 or 1\u200b1\u200b2.",
    "in wide digits": "Take \uff11\uff11\uff11 or \uff11\uff11\uff12.",
    "in base32": "Take GEYTC or GEYTE.",
    "in binary": "Take 0b1101111 or 0b1110000.",
    "with letters around": "Take x111x or x112x.",
}
"""Hints that tell the answers 111 and 112."""
TWO_ANSWERS = changed(("self.answer = a + b", "self.answer = 111 + (a + b) % 2"), source=BARE)
TWO_WORDS = changed(("self.answer = a + b", "self.answer = ('marble', 'walnut')[(a + b) % 2]"), source=BARE)
WORD_HINTS = {
    "by a shifted alphabet": "Take zneoyr or jnyahg.",
    "spelled": "m-a-r-b-l-e or w-a-l-n-u-t",
    "backwards": "elbram, tunlaw",
}
"""Hints that tell the answers marble and walnut."""

STATE: dict[str, Fault] = {
    "counts its games": kept("self.games += 1\nn = self.games", init="self.games = 0"),
    "counts its games in a function": kept(
        "count.n += 1\nn = count.n", module="def count():\n    pass\n\n\ncount.n = 0", rule="module-work"
    ),
    "counts its games in a function, made at need": kept(
        "n = count()", module="def count():\n    count.n = getattr(count, 'n', 0) + 1\n    return count.n"
    ),
    "counts its games by a generator": kept("n = next(self.numbers)", init="self.numbers = itertools.count()"),
    "counts its games by a closure": kept(
        "n = self.count()",
        init="self.count = make()",
        module="def make():\n    n = 0\n\n    def count():\n        nonlocal n\n        n += 1\n        return n\n\n"
        "    return count",
    ),
    "counts its games in a list by another name": kept("games = GAMES\ngames.append(a)\nn = len(games)", module="GAMES = []"),
    "counts its games in a tuple's list": kept("games, = GAMES\ngames += [a]\nn = len(games)", module="GAMES = ([],)"),
    "counts its games in a cache": kept(
        "known(a)\nn = known.cache_info().currsize", module="@functools.lru_cache(maxsize=None)\ndef known(a):\n    return a"
    ),
    "counts its games by class": kept(
        "self.games += 1\nn = SumEnv.games", module="", init="SumEnv.games = 0", rule="shared-state"
    ),
    "goes on in the numbers of the last game": kept("n = random.randrange(1000)", init="random.seed(7)"),
    "keeps a default argument": (
        "shared-state",
        changed(("def step(", "def note(self, a, seen=([],)):\n        seen[0].append(a)\n\n    def step(")),
        HINT,
    ),
    "shows the order of a set of texts when it is lost": (
        "replay",
        changed(('"Wrong."', "'Wrong: ' + ' '.join({'ab', 'cd', 'ef', 'gh', 'ij', 'kl'})")),
        HINT,
    ),
    "pays by the order of a set of texts": (
        "replay",
        changed(
            (
                "(1.0 if right",
                "(1.0 if right and list({'ab', 'cd', 'ef', 'gh', 'ij'})[0] == 'ef' else 0.5 if right",
            )
        ),
        HINT,
    ),
    "shows an object's address": ("replay", changed(('"Wrong."', "f'Wrong {object()}'")), HINT),
    "behaves where it sees another hash seed": (
        "replay",
        changed(("Add {a}", "{'Sum' if next(iter({'p', 'q', 'r', 's', 't'})) in 'pq' else 'Add'} {a}")),
        HINT,
    ),
    "behaves where solution stands in the file": (
        "witness",
        changed(("self.answer = a + b", "self.answer = a + b if hasattr(self, 'solution') else 10**9")),
        HINT,
    ),
}
"""State that outlives a game, and order that nobody drew."""

REACH: dict[str, Fault] = {
    "hands a module around": at_reset("tools = random\ntools._os.getpid()", "imports"),
    "hides a module in a list": at_reset("[random][0]._os.getpid()", "imports"),
    "goes through a module's module": at_reset("collections.abc.sys.argv", "imports", "import collections.abc"),
    "takes a module out of a module": at_reset(
        "statistics.random.seed(1)\nm = statistics.random", "imports", "import statistics"
    ),
    "reads the process's environment": at_reset("random._os.environ", "imports"),
    "matches a special attribute": at_reset("match self:\n    case object(__class__=found):\n        pass", "dunder"),
    "gets attributes by a built text": at_reset("operator.attrgetter('_' + '_class_' + '_')(self)", "calls", "import operator"),
    "formats attributes by a built text": at_reset(
        "string.Formatter().get_field('0.' + '_' * 2, [self], {})", "calls", "import string"
    ),
    "evaluates annotations": at_reset("typing.get_type_hints(self.step)", "calls", "import typing"),
    "asks for a frame by getattr": at_reset("getattr((n for n in [1]), 'gi_frame')", "calls"),
    "names the builtins' own": at_reset("__build_class__", "calls"),
    "hides lines behind a carriage return": ("contract", SUM.replace("import random\n", "import random  # \r# more\n", 1), HINT),
    "starts threads": at_reset("threading.Thread()", "imports", "import threading"),
    "opens sockets": at_reset("socket.socket()", "imports", "import socket"),
    "asks for the date": at_reset("datetime.datetime.now()", "imports", "import datetime"),
    "orders by address": at_reset("order = sorted([self, rng_of], key=id)", "calls", "def rng_of():\n    pass"),
}
"""Ways out of what a source may name."""

BREAKS: dict[str, Fault] = {
    "waits for others": (
        "async",
        changed(("    def step", "    async def later(self):\n        return 0\n\n    def step")),
        HINT,
    ),
    "leaves the process": ("runs", changed(("right = action.strip()", "raise SystemExit\n        right = action.strip()")), HINT),
    "recurses without end": (
        "runs",
        changed(
            ("right = action.strip()", "self.step(action) if not self.deep() else 0\n        right = action.strip()"),
            ("def step", "def deep(self):\n        return self.deep()\n\n    def step"),
        ),
        HINT,
    ),
    "pays nothing as None": ("types", changed(("1.0 if right else 0.0", "1.0 if right else None")), HINT),
    "ends by a number": ("types", changed((RETURN, RETURN.replace("True, False", "1, False"))), HINT),
    "gives info as a list": ("types", changed((RETURN, RETURN.replace("{}", "[]"))), HINT),
    "observes surrogates": ("types", changed(('"Wrong."', r"'\ud800'")), HINT),
    "observes too much": ("jail", changed(('"Right."', "'x' * 70000")), HINT),
    "resets to a text": ("types", changed((SHOWN, SHOWN.removesuffix(", {}"))), HINT),
    "solves with a thousand actions": ("types", changed((WITNESS, WITNESS + " * 1000")), HINT),
    "solves without end": ("witness", changed((WITNESS, "while True:\n            pass")), HINT),
    "solves with numbers": ("types", changed((WITNESS, "return [self.answer]")), HINT),
    "pays less than nothing": ("types", changed(("else 0.0", "else -1e300")), HINT),
    "pays minus infinity": ("types", changed(("else 0.0", "else -1e999")), HINT),
    "prints the answer in base64": (
        "copier",
        changed(("class SumEnv", "import json\n\n\nclass SumEnv"), ("Answer in", "Key: {(a + b):b}. Answer in")),
        HINT,
    ),
    "prints the answer at the end": (
        "copier",
        changed((" Answer in \\\\boxed{{}}.", " Box what follows in \\\\boxed{{}}: {a + b}")),
        HINT,
    ),
}
"""Breaches of the contract."""
