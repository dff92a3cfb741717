"""API Orchestration: offers of one service, the exchange rate of another, and a booking at a third."""

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


class TripBookingEnv:
    CITIES = ("Brno", "Cork", "Lyon", "Oulu", "Riga", "Turin")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.city = rng.choice(self.CITIES)
        numbers = rng.sample(range(100, 1000), 4)
        prices = rng.sample(range(40, 100), 4)
        coins = [rng.choice(("crown", "ducat", "florin")) for _ in numbers]
        self.rates = {coin: rng.randrange(2, 10) for coin in ("crown", "ducat", "florin")}
        self.offers = {number: (price, coin) for number, price, coin in zip(numbers, prices, coins, strict=True)}
        cost = {number: price * self.rates[coin] for number, (price, coin) in self.offers.items()}
        self.best = min(numbers, key=lambda number: (cost[number], number))
        self.answer = f"{self.best} {cost[self.best]}"
        self.booked = None
        self.turns = 0
        self.over = False
        return (
            "Tools: offers(city: string) lists offers with price and currency; rate(currency: string) tells how many pennies one "
            "coin is worth; book(offer: integer) books an offer, once. Call one as "
            '<tool_call>{"name": "...", "arguments": {...}}</tool_call>. '
            f"Book the offer to {self.city} that costs fewest pennies (of equal ones the lowest number), then report it as "
            "<answer>OFFER PENNIES</answer>.",
            {},
        )

    def step(self, action):
        if self.over:
            return "The desk is closed.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if text.startswith("<answer>") and text.endswith("</answer>"):
            self.over = True
            right = self.booked == self.best and text[8:-9].strip() == self.answer
            return ("Well booked." if right else "Not what was asked."), (1.0 if right else 0.0), True, False, {}
        if self.turns >= self.max_turns:
            self.over = True
            return "The desk closes.", 0.0, False, True, {}
        return self.call(text), 0.0, False, False, {}

    def call(self, text):
        call, wrong = read_call(text)
        if call is None:
            return wrong
        name, arguments = call["name"], call["arguments"]
        if name == "offers" and takes(arguments, city=str):
            listed = [{"offer": number, "price": price, "currency": coin} for number, (price, coin) in self.offers.items()]
            return json.dumps(listed if arguments["city"] == self.city else [])
        if name == "rate" and takes(arguments, currency=str):
            return json.dumps({"pennies": self.rates.get(arguments["currency"])})
        if name == "book" and takes(arguments, offer=int):
            if self.booked is not None or arguments["offer"] not in self.offers:
                return "Error: no such offer, or one is booked already."
            self.booked = arguments["offer"]
            return "Booked."
        return "Error: unknown tool or arguments."

    def solution(self):
        calls = [{"name": "offers", "arguments": {"city": self.city}}]
        calls += [{"name": "rate", "arguments": {"currency": coin}} for coin in sorted(self.rates)]
        calls += [{"name": "book", "arguments": {"offer": self.best}}]
        return ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in calls] + [f"<answer>{self.answer}</answer>"]
