"""Multi-Step Workflows: an order from its customer to its parcel, each step taking what the one before gave."""

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


class OrderDeskEnv:
    CUSTOMERS = ("Ines", "Jonas", "Kira", "Levi", "Mona")
    GOODS = ("bell", "clock", "drum", "globe", "harp")

    def __init__(self, max_turns=25):
        self.max_turns = max_turns
        self.over = True

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.numbers = dict(zip(self.CUSTOMERS, rng.sample(range(100, 1000), 5), strict=True))
        self.prices = {goods: rng.randrange(12, 90) for goods in self.GOODS}
        self.customer, self.goods = rng.choice(self.CUSTOMERS), rng.choice(self.GOODS)
        self.count = rng.randrange(2, 9)
        self.order = rng.randrange(1000, 10000)
        self.parcel = str(rng.randrange(100000, 1000000))
        self.stage = "new"
        self.turns = 0
        self.over = False
        return (
            "Tools: customer(name: string) gives a customer number; price(goods: string) gives the price of one piece; "
            "open_order(customer: integer, goods: string, count: integer) gives an order number; pay(order: integer, "
            "amount: integer) takes exactly the whole price; ship(order: integer) sends a paid order and gives a parcel number. "
            'Call one as <tool_call>{"name": "...", "arguments": {...}}</tool_call>. '
            f"{self.customer} orders {self.count} pieces of the goods {self.goods}. See the order through and report the parcel "
            "number as <answer>NUMBER</answer>.",
            {},
        )

    def step(self, action):
        if self.over:
            return "The office is closed.", 0.0, True, False, {}
        self.turns += 1
        text = action.strip()
        if text.startswith("<answer>") and text.endswith("</answer>"):
            self.over = True
            right = self.stage == "shipped" and text[8:-9].strip() == self.parcel
            return ("The customer is glad." if right else "No such parcel."), (1.0 if right else 0.0), True, False, {}
        if self.turns >= self.max_turns:
            self.over = True
            return "The office closes.", 0.0, False, True, {}
        return self.call(text), 0.0, False, False, {}

    def call(self, text):
        call, wrong = read_call(text)
        if call is None:
            return wrong
        name, arguments = call["name"], call["arguments"]
        if name == "customer" and takes(arguments, name=str) and arguments["name"] in self.numbers:
            return json.dumps({"customer": self.numbers[arguments["name"]]})
        if name == "price" and takes(arguments, goods=str) and arguments["goods"] in self.prices:
            return json.dumps({"price": self.prices[arguments["goods"]]})
        if name == "open_order" and takes(arguments, customer=int, goods=str, count=int):
            wanted = {"customer": self.numbers[self.customer], "goods": self.goods, "count": self.count}
            if self.stage != "new" or arguments != wanted:
                return "Error: an order is open already, or this is not what the customer orders."
            self.stage = "open"
            return json.dumps({"order": self.order})
        if name == "pay" and takes(arguments, order=int, amount=int):
            right = {"order": self.order, "amount": self.count * self.prices[self.goods]}
            if self.stage != "open" or arguments != right:
                return "Error: no such open order, or not its whole price."
            self.stage = "paid"
            return "Paid."
        if name == "ship" and arguments == {"order": self.order} and self.stage in ("paid", "shipped"):
            self.stage = "shipped"
            return json.dumps({"parcel": int(self.parcel)})
        return "Error: unknown tool or arguments, or not yet."

    def solution(self):
        number, amount = self.numbers[self.customer], self.count * self.prices[self.goods]
        calls = [
            {"name": "customer", "arguments": {"name": self.customer}},
            {"name": "price", "arguments": {"goods": self.goods}},
            {"name": "open_order", "arguments": {"customer": number, "goods": self.goods, "count": self.count}},
            {"name": "pay", "arguments": {"order": self.order, "amount": amount}},
            {"name": "ship", "arguments": {"order": self.order}},
        ]
        return ["<tool_call>" + json.dumps(call) + "</tool_call>" for call in calls] + [f"<answer>{self.parcel}</answer>"]
