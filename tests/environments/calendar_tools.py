"""Tools over a calendar: free slots are looked up a person at a time, a meeting is booked that suits all."""

import json
import random


class CalendarToolsEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.people = rng.sample(["kim", "lee", "mia", "noa", "oli", "pia"], 3)
        self.common = rng.randrange(8, 20)
        hours = [hour for hour in range(8, 20) if hour != self.common]
        rng.shuffle(hours)
        self.free = {}
        for place, person in enumerate(self.people):
            # no other hour is free for all: each is missing with one of the three
            missing = hours[place::3]
            self.free[person] = sorted(hour for hour in range(8, 20) if hour not in missing)
        self.turns = 0
        self.over = False
        who = ", ".join(self.people)
        return f'Tools: free(person), book(hour). A call is JSON such as {{"tool": ..., "value": ...}}. Meet with {who}.', {}

    def step(self, action):
        if self.over:
            return "closed", 0.0, True, False, {}
        self.turns += 1
        try:
            call = json.loads(action)
            tool, value = call["tool"], call["value"]
        except (ValueError, KeyError, TypeError, RecursionError):
            tool, value = "", None
        if tool == "book" and type(value) is int:
            self.over = True
            return ("booked", 1.0, True, False, {}) if value == self.common else ("somebody is away", 0.0, True, False, {})
        if self.turns >= min(8, self.max_turns):
            self.over = True
            return "the day is over", 0.0, True, False, {}
        if tool == "free" and isinstance(value, str) and value in self.free:
            return f"{value}: {self.free[value]}", 0.0, False, False, {}
        return "this is no call", 0.0, False, False, {}

    def solution(self):
        calls = [{"tool": "free", "value": person} for person in self.people] + [{"tool": "book", "value": self.common}]
        return [json.dumps(call) for call in calls]
