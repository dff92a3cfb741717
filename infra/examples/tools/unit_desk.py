"""Tool Selection: of several tools that look alike only some fit the question; the others answer something else."""

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


class UnitDeskEnv:
    KINDS = ("cloth", "grain", "oil", "wine")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.goods = rng.choice(self.KINDS)
        self.amount = rng.randrange(3, 20)
        self.sizes = {kind: rng.randrange(11, 60) for kind in self.KINDS}
        self.buying = {kind: rng.randrange(3, 30) for kind in self.KINDS}
        self.selling = {kind: self.buying[kind] + rng.randrange(1, 9) for kind in self.KINDS}
        self.toll = rng.randrange(10, 60)
        self.sells = rng.random() < 0.5
        price = self.buying if self.sells else self.selling
        total = self.amount * self.sizes[self.goods] * price[self.goods]
        self.answer = str(total - self.toll if self.sells else total + self.toll)
        self.turns = 0
        self.over = False
        wish = "sells to the desk" if self.sells else "buys from the desk"
        return (
            "Tools: measure(goods: string) tells how many cups a barrel of the goods holds; desk_buys(goods: string) and "
            "desk_sells(goods: string) tell the pennies at which the desk buys and sells a cup; toll() tells the pennies that "
            "every customer pays the desk for a deal; history(goods: string) tells last year's prices. Call one as "
            '<tool_call>{"name": "...", "arguments": {...}}</tool_call>. '
            f"A customer {wish} {self.amount} barrels of {self.goods} today. How many pennies change hands in the end, toll "
            "included? Answer with <answer>PENNIES</answer>.",
            {},
        )

    def step(self, action):
        if self.over:
            return "The desk is closed.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if text.startswith("<answer>") and text.endswith("</answer>"):
            self.over = True
            right = text[8:-9].strip() == self.answer
            return ("The sum is right." if right else "The sum is wrong."), (1.0 if right else 0.0), True, False, {}
        if self.turns >= min(10, self.max_turns):
            self.over = True
            return "The desk closes.", 0.0, False, True, {}
        return self.call(text), 0.0, False, False, {}

    def call(self, text):
        call, wrong = read_call(text)
        if call is None:
            return wrong
        name, arguments = call["name"], call["arguments"]
        if name == "toll" and takes(arguments):
            return json.dumps({"pennies": self.toll})
        if not takes(arguments, goods=str) or arguments["goods"] not in self.sizes:
            return "Error: unknown tool, arguments or goods."
        goods = arguments["goods"]
        told = {
            "measure": {"cups": self.sizes[goods]},
            "desk_buys": {"pennies": self.buying[goods]},
            "desk_sells": {"pennies": self.selling[goods]},
            "history": {"pennies": [self.buying[goods] - 1, self.selling[goods] + 1]},
        }
        return json.dumps(told[name]) if isinstance(name, str) and name in told else "Error: unknown tool."

    def solution(self):
        price = "desk_buys" if self.sells else "desk_sells"
        calls = [{"name": name, "arguments": {"goods": self.goods}} for name in ("measure", price)]
        calls += [{"name": "toll", "arguments": {}}]
        return ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in calls] + [f"<answer>{self.answer}</answer>"]
