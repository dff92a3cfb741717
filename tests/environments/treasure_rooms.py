"""A text adventure with state: a key has to be fetched before the door; words as actions."""

import random

EXITS = {"hall": ("cellar", "attic", "garden"), "cellar": ("hall",), "attic": ("hall",), "garden": ("hall",)}


class TreasureRoomsEnv:
    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        rooms = ["cellar", "attic", "garden"]
        rng.shuffle(rooms)
        self.key_room, self.door_room = rooms[:2]
        self.tools = rng.sample(["brass", "iron", "silver", "copper"], 2)
        self.wanted = self.tools[0]
        self.room, self.held, self.turns, self.over = "hall", None, 0, False
        keys = " and ".join(sorted(self.tools))
        return (
            f"You are in the hall. Exits: cellar, attic, garden. The {self.key_room} holds two keys, {keys}; "
            f"the {self.door_room} has a {self.wanted} door. Say 'go ROOM', 'take KEY' or 'unlock'.",
            {},
        )

    def step(self, action):
        if self.over:
            return "Nothing moves.", 0.0, True, False, {}
        self.turns += 1
        words = action.strip().lower().split()
        if words == ["unlock"] and self.room == self.door_room:
            self.over = True
            right = self.held == self.wanted
            return ("The door opens." if right else "It does not open, and the key breaks."), float(right), True, False, {}
        if self.turns >= min(9, self.max_turns):
            self.over = True
            return "Night falls.", 0.0, True, False, {}
        if len(words) == 2 and words[0] == "go" and words[1] in EXITS[self.room]:
            self.room = words[1]
            return f"You are in the {self.room}.", 0.0, False, False, {}
        if len(words) == 2 and words[0] == "take" and self.room == self.key_room and words[1] in self.tools:
            self.held = words[1]
            return f"You hold the {self.held} key.", 0.0, False, False, {}
        return "Nothing happens.", 0.0, False, False, {}

    def solution(self):
        return [f"go {self.key_room}", f"take {self.wanted}", "go hall", f"go {self.door_room}", "unlock"]
