"""Stateful tool use with three tools: balances, transfers, a final answer; calls are read strictly."""

import json
import random


class BankToolsEnv:
    NAMES = ("ada", "ben", "cleo", "dora", "emil")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.accounts = {name: rng.randrange(20, 90) for name in self.NAMES}
        self.rich, self.poor, self.third = rng.sample(self.NAMES, 3)
        self.amount = rng.randrange(3, 12)
        self.log = []
        self.turns = 0
        self.over = False
        return (
            'Tools, called as <tool_call>{"name": ..., "arguments": {...}}</tool_call>: balance(name), '
            f"transfer(source, target, amount), history(). Accounts: {', '.join(self.NAMES)}. Transfer {self.amount} from "
            f"{self.rich} to {self.poor}, then twice as much from {self.poor} to {self.third}; then give the balance of "
            f"{self.third} as <answer>N</answer>.",
            {},
        )

    def step(self, action):
        if self.over:
            return "The session is closed.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if text.startswith("<answer>") and text.endswith("</answer>"):
            self.over = True
            done = self.log == [(self.rich, self.poor, self.amount), (self.poor, self.third, 2 * self.amount)]
            right = done and text[8:-9].strip() == str(self.accounts[self.third])
            return ("Correct." if right else "Not correct."), (1.0 if right else 0.0), True, False, {}
        if self.turns >= self.max_turns:
            self.over = True
            return "Out of turns.", 0.0, False, True, {}
        return self.call(text), 0.0, False, False, {}

    def call(self, text):
        if not (text.startswith("<tool_call>") and text.endswith("</tool_call>")):
            return "Error: neither a tool call nor an answer."
        try:
            request = json.loads(text[11:-12])
        except (ValueError, RecursionError):
            return "Error: the call is not JSON."
        if not isinstance(request, dict) or set(request) != {"name", "arguments"} or not isinstance(request["arguments"], dict):
            return "Error: a call has a name and arguments."
        name, arguments = request["name"], request["arguments"]
        if name == "balance" and list(arguments) == ["name"] and arguments["name"] in list(self.accounts):
            return json.dumps({"balance": self.accounts[arguments["name"]]})
        if name == "history" and not arguments:
            return json.dumps(self.log)
        if name == "transfer":
            return self.transfer(arguments)
        return "Error: unknown tool or bad arguments."

    def transfer(self, arguments):
        if set(arguments) != {"source", "target", "amount"}:
            return "Error: transfer takes source, target, amount."
        source, target, amount = arguments["source"], arguments["target"], arguments["amount"]
        known = list(self.accounts)
        if source not in known or target not in known or type(amount) is not int or not 0 < amount <= self.accounts[source]:
            return "Error: the transfer is refused."
        self.accounts[source] -= amount
        self.accounts[target] += amount
        self.log.append((source, target, amount))
        return "Done."

    def solution(self):
        calls = [
            {"name": "transfer", "arguments": {"source": self.rich, "target": self.poor, "amount": self.amount}},
            {"name": "transfer", "arguments": {"source": self.poor, "target": self.third, "amount": 2 * self.amount}},
        ]
        final = self.accounts[self.third] + 2 * self.amount
        return ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in calls] + [f"<answer>{final}</answer>"]
