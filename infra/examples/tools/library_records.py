"""Data Retrieval: which records of a catalogue count, looked up page by page and one at a time."""

import json
import random


def read_call(action):
    """The call in an action, or None; and what is wrong with it."""
    text = action.strip()
    if not (text.startswith("<tool_call>") and text.endswith("</tool_call>")):
        return None, "Error: write one tool call or one answer."
    try:
        call = json.loads(text[11:-12])
    except (ValueError, RecursionError):
        return None, "Error: the call is not JSON."
    if not isinstance(call, dict) or set(call) != {"name", "arguments"} or not isinstance(call["arguments"], dict):
        return None, "Error: a call has a name and an object of arguments."
    return call, ""


def takes(arguments, **kinds):
    """Whether the arguments are those of a tool, each of its type."""
    return set(arguments) == set(kinds) and all(type(arguments[name]) is kind for name, kind in kinds.items())


class LibraryRecordsEnv:
    AUTHORS = ("Abel", "Berg", "Crane", "Dorn")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.books = {
            number: {"author": rng.choice(self.AUTHORS), "year": rng.randrange(1900, 2000), "pages": rng.randrange(50, 400)}
            for number in rng.sample(range(1000, 10000), 12)
        }
        self.author = self.books[rng.choice(sorted(self.books))]["author"]
        self.year = rng.randrange(1930, 1960)
        counted = [book["pages"] for book in self.books.values() if book["author"] == self.author and book["year"] > self.year]
        self.answer = f"{len(counted)} {sum(counted)}"
        self.turns = 0
        self.over = False
        return (
            "Tools: search(author: string, page: integer) lists up to two book numbers a page, pages from 1, an empty list where "
            "there are no more; book(number: integer) tells author, year and pages. Call one as "
            '<tool_call>{"name": "...", "arguments": {...}}</tool_call>. '
            f"How many books by {self.author} are newer than {self.year}, and how many pages do they have together? Answer with "
            "<answer>COUNT PAGES</answer>.",
            {},
        )

    def step(self, action):
        if self.over:
            return "The library is closed.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if text.startswith("<answer>") and text.endswith("</answer>"):
            self.over = True
            right = text[8:-9].strip() == self.answer
            return ("That is right." if right else "That is not so."), (1.0 if right else 0.0), True, False, {}
        if self.turns >= self.max_turns:
            self.over = True
            return "The library closes.", 0.0, False, True, {}
        return self.call(text), 0.0, False, False, {}

    def numbers(self, author):
        return [number for number in sorted(self.books) if self.books[number]["author"] == author]

    def call(self, text):
        call, wrong = read_call(text)
        if call is None:
            return wrong
        name, arguments = call["name"], call["arguments"]
        if name == "search" and takes(arguments, author=str, page=int):
            page = arguments["page"]
            return json.dumps(self.numbers(arguments["author"])[2 * page - 2 : 2 * page] if 0 < page < 100 else [])
        if name == "book" and takes(arguments, number=int) and arguments["number"] in self.books:
            return json.dumps(self.books[arguments["number"]])
        return "Error: unknown tool, arguments or book."

    def solution(self):
        found = self.numbers(self.author)
        calls = [{"name": "search", "arguments": {"author": self.author, "page": page}} for page in range(1, len(found) // 2 + 2)]
        calls += [{"name": "book", "arguments": {"number": number}} for number in found]
        return ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in calls] + [f"<answer>{self.answer}</answer>"]
