"""A search with directions: the shortest way out of a small maze, partial credit for coming near."""

import random
from collections import deque

MOVES = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


class GridWalkEnv:
    SIZE = 5

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        while True:
            cells = [(x, y) for x in range(self.SIZE) for y in range(self.SIZE)]
            self.walls = set(rng.sample(cells, 7))
            free = [cell for cell in cells if cell not in self.walls]
            self.place, self.goal = rng.sample(free, 2)
            self.way = self.search()
            if self.way is not None and len(self.way) >= 4:
                break
        self.left = len(self.way)
        self.over = False
        walls = sorted(self.walls)
        moves = f"Moves: up, down, left, right. {self.left} moves."
        return f"You are at {self.place}, the exit is {self.goal}, walls {walls}. {moves}", {}

    def search(self):
        seen = {self.place: []}
        queue = deque([self.place])
        while queue:
            here = queue.popleft()
            if here == self.goal:
                return seen[here]
            for name in sorted(MOVES):
                there = (here[0] + MOVES[name][0], here[1] + MOVES[name][1])
                inside = 0 <= there[0] < self.SIZE and 0 <= there[1] < self.SIZE
                if inside and there not in self.walls and there not in seen:
                    seen[there] = seen[here] + [name]
                    queue.append(there)
        return None

    def step(self, action):
        if self.over:
            return "Over.", 0.0, True, False, {}
        self.left -= 1
        dx, dy = MOVES.get(action.strip().lower(), (0, 0))
        there = (self.place[0] + dx, self.place[1] + dy)
        if there not in self.walls and 0 <= there[0] < self.SIZE and 0 <= there[1] < self.SIZE:
            self.place = there
        if self.place == self.goal:
            self.over = True
            return "Out.", 1.0, True, False, {}
        if self.left <= 0:
            self.over = True
            near = abs(self.place[0] - self.goal[0]) + abs(self.place[1] - self.goal[1]) == 1
            return "No moves left.", (0.2 if near else 0.0), True, False, {}
        return f"You are at {self.place}.", 0.0, False, False, {}

    def solution(self):
        return list(self.way)
