"""Stateful tool use: look up, move stock, answer."""

import json
import random


class StockToolsEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.stock = {name: rng.randrange(5, 60) for name in ("north", "south", "east", "west")}
        self.source, self.target = rng.sample(sorted(self.stock), 2)
        self.amount = rng.randrange(1, 5)
        self.wanted = self.stock[self.target] + self.amount
        self.moved = False
        self.turns = 0
        self.over = False
        return (
            f"Tools: look(place), move(source, target, amount). Move {self.amount} from {self.source} to {self.target}, "
            f"then answer with what {self.target} holds: <answer>N</answer>.",
            {},
        )

    def step(self, action):
        if self.over:
            return "Over.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if text.startswith("<answer>") and text.endswith("</answer>"):
            self.over = True
            right = self.moved and text[8:-9] == str(self.wanted)
            return ("Accepted." if right else "Rejected."), (1.0 if right else -0.5), True, False, {}
        if self.turns >= min(self.max_turns, 10):
            self.over = True
            return "No turns left.", 0.0, False, True, {}
        return self.call(text), 0.0, False, False, {}

    def call(self, text):
        if not (text.startswith("<tool_call>") and text.endswith("</tool_call>")):
            return "Error: expected a tool call."
        try:
            request = json.loads(text[11:-12])
            name, arguments = request["name"], request["arguments"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return "Error: not a call."
        if name == "look" and isinstance(arguments, dict) and arguments.get("place") in list(self.stock):
            return str(self.stock[arguments["place"]])
        if name == "move" and arguments == {"source": self.source, "target": self.target, "amount": self.amount}:
            if not self.moved:
                self.stock[self.source] -= self.amount
                self.stock[self.target] += self.amount
            self.moved = True
            return "Moved."
        return "Error: bad arguments."

    def solution(self):
        move = {"name": "move", "arguments": {"source": self.source, "target": self.target, "amount": self.amount}}
        look = {"name": "look", "arguments": {"place": self.target}}
        calls = ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in (move, look)]
        return [*calls, f"<answer>{self.wanted}</answer>"]
