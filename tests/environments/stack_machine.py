"""A program to run by hand: what lies on the stack in the end."""

import random


class StackMachineEnv:
    def __init__(self, max_turns=25):
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        program, stack = [], []
        for _ in range(9):
            word = rng.choice(("push", "push", "add", "swap", "dup"))
            if word == "push" or len(stack) < 2:
                number = rng.randrange(1, 30)
                program.append(f"push {number}")
                stack.append(number)
            elif word == "add":
                stack.append(stack.pop() + stack.pop())
                program.append(word)
            elif word == "swap":
                stack[-1], stack[-2] = stack[-2], stack[-1]
                program.append(word)
            else:
                stack.append(stack[-1])
                program.append(word)
        self.goal = " ".join(map(str, stack))
        self.over = False
        return "\n".join(program) + "\nWrite the stack from the bottom, numbers with spaces between them.", {}

    def step(self, action):
        if self.over:
            return "over", 0.0, True, False, {}
        self.over = True
        right = action.split() == self.goal.split()
        return f"the stack was {self.goal}", (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [self.goal]
