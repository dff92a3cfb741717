"""Spatial Reasoning: steers a robot that turns and steps to a cell of a grid with walls, move by move."""

import random
from collections import deque

HEADINGS = ("north", "east", "south", "west")
STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))


class RobotWalkEnv:
    SIZE = 6

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        cells = [(x, y) for x in range(self.SIZE) for y in range(self.SIZE)]
        longest = max(1, min(self.max_turns, 14))
        while True:
            self.walls = set(rng.sample(cells, 9))
            self.place, self.goal = rng.sample([cell for cell in cells if cell not in self.walls], 2)
            self.heading = rng.randrange(4)
            self.way = self.search()
            if self.way is not None and min(6, longest) <= len(self.way) <= longest:
                break
        self.left = len(self.way)
        self.over = False
        walls = ", ".join(f"({x}, {y})" for x, y in sorted(self.walls))
        return (
            f"A grid of {self.SIZE} by {self.SIZE} cells, (0, 0) in the south-west corner, (x, y) counted east and north. "
            f"Walls: {walls}. The robot stands at {self.place} and looks {HEADINGS[self.heading]}; bring it to {self.goal} "
            f"within {self.left} moves. A move is \\boxed{{forward}}, \\boxed{{left}} or \\boxed{{right}}; left and right turn "
            "the robot where it stands, a wall or the edge stops it.",
            {},
        )

    def move(self, place, heading, word):
        if word != "forward":
            return place, (heading + (1 if word == "right" else 3)) % 4
        there = (place[0] + STEPS[heading][0], place[1] + STEPS[heading][1])
        inside = 0 <= there[0] < self.SIZE and 0 <= there[1] < self.SIZE
        return (there if inside and there not in self.walls else place), heading

    def search(self):
        start = (self.place, self.heading)
        ways = {start: []}
        queue = deque([start])
        while queue:
            here = queue.popleft()
            if here[0] == self.goal:
                return ways[here]
            for word in ("forward", "left", "right"):
                there = self.move(here[0], here[1], word)
                if there not in ways:
                    ways[there] = [*ways[here], word]
                    queue.append(there)
        return None

    def step(self, action):
        if self.over:
            return "The robot is off.", 0.0, True, False, {}
        self.left -= 1
        text = action.strip()
        word = text[7:-1] if text.startswith("\\boxed{") and text.endswith("}") else ""
        known = word in ("forward", "left", "right")
        if known:
            self.place, self.heading = self.move(self.place, self.heading, word)
        if self.place == self.goal:
            self.over = True
            return "The robot has arrived.", 1.0, True, False, {}
        if self.left <= 0:
            self.over = True
            return "No moves are left.", 0.0, True, False, {}
        told = f"The robot stands at {self.place} and looks {HEADINGS[self.heading]}; {self.left} moves are left."
        return (told if known else f"That is no move. {told}"), 0.0, False, False, {}

    def solution(self):
        return ["\\boxed{" + word + "}" for word in self.way]
