"""A three-way choice that the observation lists, decided by rules to apply in order."""

import random
from enum import Enum


class Plan(Enum):
    WALK = "walk"
    BUS = "bus"
    STAY = "stay"


class WeatherPlanEnv:
    def __init__(self, max_turns=25):
        self.plan = None

    def reset(self, seed=None):
        rng = random.Random(seed)
        while True:
            wind, rain, heat, money = (rng.randrange(1, 100) for _ in range(4))
            plan = Plan.STAY if wind + rain > 125 else Plan.BUS if rain > heat and money > 20 else Plan.WALK
            if plan is rng.choice(list(Plan)):
                break
        self.plan = plan
        return (
            f"wind {wind}, rain {rain}, heat {heat}, money {money}. Stay where wind and rain together pass 125; else take the "
            "bus where rain passes heat and money passes 20; else walk. Say walk, bus or stay.",
            {},
        )

    def step(self, action):
        plan, self.plan = self.plan, None
        right = plan is not None and action.strip().lower() == plan.value
        return ("a good plan" if right else "a bad plan"), (1.0 if right else 0.0), True, False, {}

    def solution(self):
        return [self.plan.value]
