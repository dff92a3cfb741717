"""State Modification: moves goods between shelves until each holds what a plan asks for."""

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


class StockLevelsEnv:
    SHELVES = ("east", "north", "south", "west")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.stock = {shelf: rng.randrange(5, 60) for shelf in self.SHELVES}
        self.wanted = dict(self.stock)
        for _ in range(3):
            source, target = rng.sample(self.SHELVES, 2)
            moved = rng.randrange(1, self.wanted[source] + 1) if self.wanted[source] else 0
            self.wanted[source] -= moved
            self.wanted[target] += moved
        if self.wanted == self.stock:
            self.wanted["east"] += self.wanted["west"] + 1
            self.stock["east"] += 1
            self.wanted["west"] = 0
        self.turns = 0
        self.over = False
        plan = ", ".join(f"{shelf} {self.wanted[shelf]}" for shelf in self.SHELVES)
        return (
            "Tools: count(shelf: string) tells how many boxes a shelf holds; move(source: string, target: string, boxes: "
            "integer) moves boxes, as many as the source has at most. Call one as "
            '<tool_call>{"name": "...", "arguments": {...}}</tool_call>. '
            f"Shelves: {', '.join(self.SHELVES)}. Bring them to this plan: {plan}. When all is in place, end with "
            "<answer>done</answer>.",
            {},
        )

    def step(self, action):
        if self.over:
            return "The store is locked.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if text.startswith("<answer>") and text.endswith("</answer>"):
            self.over = True
            right = self.stock == self.wanted and text[8:-9].strip() == "done"
            return ("The plan is met." if right else "The plan is not met."), (1.0 if right else 0.0), True, False, {}
        if self.turns >= self.max_turns:
            self.over = True
            return "The store is locked for the night.", 0.0, False, True, {}
        return self.call(text), 0.0, False, False, {}

    def call(self, text):
        call, wrong = read_call(text)
        if call is None:
            return wrong
        name, arguments = call["name"], call["arguments"]
        if name == "count" and takes(arguments, shelf=str) and arguments["shelf"] in self.stock:
            return json.dumps({"boxes": self.stock[arguments["shelf"]]})
        if name == "move" and takes(arguments, source=str, target=str, boxes=int):
            source, target, boxes = arguments["source"], arguments["target"], arguments["boxes"]
            if source not in self.stock or target not in self.stock or not 0 < boxes <= self.stock[source]:
                return "Error: no such shelf, or not so many boxes."
            self.stock[source] -= boxes
            self.stock[target] += boxes
            return "Moved."
        return "Error: unknown tool or arguments."

    def solution(self):
        calls = [{"name": "count", "arguments": {"shelf": shelf}} for shelf in self.SHELVES]
        stock = dict(self.stock)
        for source in self.SHELVES:
            for target in self.SHELVES:
                boxes = min(stock[source] - self.wanted[source], self.wanted[target] - stock[target])
                if boxes > 0:
                    calls.append({"name": "move", "arguments": {"source": source, "target": target, "boxes": boxes}})
                    stock[source] -= boxes
                    stock[target] += boxes
        return ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in calls] + ["<answer>done</answer>"]
