"""Tool use in an order that results decide: search, open, close the right ticket, report."""

import json
import random
from dataclasses import dataclass


@dataclass
class Ticket:
    number: int
    topic: str
    urgency: int
    open: bool = True


class TicketToolsEnv:
    TOPICS = ("printer", "login", "network", "payroll")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        numbers = rng.sample(range(100, 1000), 8)
        urgencies = rng.sample(range(1, 90), 8)
        self.tickets = [Ticket(number, self.TOPICS[i % 4], urgencies[i]) for i, number in enumerate(numbers)]
        self.topic = rng.choice(self.TOPICS)
        self.turns = 0
        self.over = False
        return (
            'Call tools as <tool_call>{"name": NAME, "arguments": {...}}</tool_call>. find(topic) lists ticket numbers, '
            "urgency(number) tells how urgent one is, close(number) closes one. Close the most urgent ticket about "
            f"{self.topic}, then say <answer>the sum of the urgencies of all tickets about {self.topic}</answer>.",
            {},
        )

    def about(self):
        return [ticket for ticket in self.tickets if ticket.topic == self.topic]

    def step(self, action):
        if self.over:
            return "Over.", 0.0, True, False, {}
        self.turns += 1
        if action.startswith("<answer>") and action.endswith("</answer>"):
            self.over = True
            urgent = max(self.about(), key=lambda ticket: ticket.urgency)
            closed = [ticket for ticket in self.tickets if not ticket.open]
            right = closed == [urgent] and action[8:-9] == str(sum(ticket.urgency for ticket in self.about()))
            return ("Well done." if right else "Failed."), (1.0 if right else 0.0), True, False, {}
        if self.turns >= min(12, self.max_turns):
            self.over = True
            return "Too many turns.", 0.0, True, False, {}
        return self.call(action), 0.0, False, False, {}

    def call(self, action):
        if not (action.startswith("<tool_call>") and action.endswith("</tool_call>")):
            return "malformed: expected <tool_call>...</tool_call>"
        try:
            request = json.loads(action[11:-12])
            name, arguments = request["name"], request["arguments"]
            values = list(arguments.values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "malformed: the call can't be read"
        if name == "find" and len(values) == 1:
            return str([ticket.number for ticket in self.tickets if ticket.topic == values[0]])
        chosen = [ticket for ticket in self.tickets if len(values) == 1 and ticket.number == values[0]]
        if not chosen or name not in ("urgency", "close"):
            return "no such tool or ticket"
        if name == "close":
            chosen[0].open = False
            return f"ticket {chosen[0].number} is closed"
        return f"urgency {chosen[0].urgency}"

    def solution(self):
        calls = [{"name": "find", "arguments": {"topic": self.topic}}]
        calls += [{"name": "urgency", "arguments": {"number": ticket.number}} for ticket in self.about()]
        urgent = max(self.about(), key=lambda ticket: ticket.urgency)
        calls += [{"name": "close", "arguments": {"number": urgent.number}}]
        total = sum(ticket.urgency for ticket in self.about())
        return ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in calls] + [f"<answer>{total}</answer>"]
