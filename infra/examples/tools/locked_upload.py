"""Error Recovery: an upload that fails with errors which say what to mend: a lock, a stale session, a wrong size."""

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


class LockedUploadEnv:
    FILES = ("atlas", "diary", "ledger", "minutes", "survey")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.file = rng.choice(self.FILES)
        self.session = rng.randrange(1000, 10000)
        self.ticket = rng.randrange(1000, 10000)
        self.holder = rng.choice(("backup", "index", "mirror"))
        self.size = rng.randrange(20, 90)
        self.receipt = str(rng.randrange(100000, 1000000))
        self.locked = True
        self.done = False
        self.turns = 0
        self.over = False
        return (
            "Tools: upload(file: string, session: integer, size: integer); renew() gives a new session; status(file: string) "
            "tells who holds a lock on a file and how large it is; release(holder: string, ticket: integer) takes a lock away; "
            "ticket(holder: string) asks a holder for the ticket of its lock. An error says what is wrong. Call one as "
            '<tool_call>{"name": "...", "arguments": {...}}</tool_call>. '
            f"Upload the file {self.file}, then report the receipt number as <answer>NUMBER</answer>.",
            {},
        )

    def step(self, action):
        if self.over:
            return "The service is off.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if text.startswith("<answer>") and text.endswith("</answer>"):
            self.over = True
            right = self.done and text[8:-9].strip() == self.receipt
            return ("The receipt is valid." if right else "The receipt is not valid."), float(right), True, False, {}
        if self.turns >= self.max_turns:
            self.over = True
            return "The service goes off.", 0.0, False, True, {}
        return self.call(text), 0.0, False, False, {}

    def call(self, text):
        call, wrong = read_call(text)
        if call is None:
            return wrong
        name, arguments = call["name"], call["arguments"]
        if name == "renew" and takes(arguments):
            return json.dumps({"session": self.session})
        if name == "status" and takes(arguments, file=str) and arguments["file"] == self.file:
            return json.dumps({"locked by": self.holder if self.locked else None, "size": self.size})
        if name == "ticket" and takes(arguments, holder=str) and arguments["holder"] == self.holder:
            return json.dumps({"ticket": self.ticket})
        if name == "release" and takes(arguments, holder=str, ticket=int):
            if arguments["holder"] != self.holder or arguments["ticket"] != self.ticket:
                return "Error: this is not the ticket of that holder's lock."
            self.locked = False
            return "Released."
        if name == "upload" and takes(arguments, file=str, session=int, size=int):
            return self.upload(arguments["file"], arguments["session"], arguments["size"])
        return "Error: unknown tool or arguments."

    def upload(self, file, session, size):
        if file != self.file:
            return "Error: no such file."
        if session != self.session:
            return "Error: the session is stale, renew it."
        if self.locked:
            return "Error: the file is locked, see its status."
        if size != self.size:
            return "Error: the size is wrong, see the file's status."
        self.done = True
        return json.dumps({"receipt": int(self.receipt)})

    def solution(self):
        calls = [
            {"name": "renew", "arguments": {}},
            {"name": "status", "arguments": {"file": self.file}},
            {"name": "ticket", "arguments": {"holder": self.holder}},
            {"name": "release", "arguments": {"holder": self.holder, "ticket": self.ticket}},
            {"name": "upload", "arguments": {"file": self.file, "session": self.session, "size": self.size}},
        ]
        return ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in calls] + [f"<answer>{self.receipt}</answer>"]
