"""What to do about a refusal, by rule: one sentence for whoever writes an environment. Shown by `spade gate`."""

from __future__ import annotations

from typing import Final

from workers.gate.rules import GateRule

ADVICE: Final[dict[GateRule, str]] = {
    GateRule.SIZE: "Shorten the file to 32 KiB; draw data from the seed in place of writing it down.",
    GateRule.CONTRACT: "Keep to the contract: one class ...Env with __init__(self, max_turns=25), reset(self, seed=None), "
    "step(self, action), solution(self); `spade gate --help` shows one.",
    GateRule.IMPORTS: "Import only modules that compute (random, math, string, re, json, collections, itertools and "
    "others), and use them as MODULE.NAME: no private name, no module as a value.",
    GateRule.CALLS: "Leave the call out; getattr, hasattr and operator.attrgetter take a plain public name written in place.",
    GateRule.DUNDER: "Leave names with double underscores, frames and tracebacks alone; super().__init__() is allowed.",
    GateRule.GLOBALS: "Keep what changes in self and set it in reset; names of the module are constants.",
    GateRule.SHARED_STATE: "Keep what changes in self and set it in reset; class attributes and default arguments are constants.",
    GateRule.MODULE_WORK: "Move the work into reset or __init__; a module holds imports, definitions and constants.",
    GateRule.ASYNC: "Write ordinary functions.",
    GateRule.PRINTING: "Put into the observation what the player is to see.",
    GateRule.JAIL: "Use less: 1 s of CPU time a call, 256 MiB, observations of 60,000 bytes; no system calls of your own.",
    GateRule.RUNS: "Play solution's actions by hand and mend what raises.",
    GateRule.TYPES: "Return (str, float, bool, bool, dict) from step, (str, dict) from reset, list[str] of at most 256 "
    "from solution, rewards in [-1, 1].",
    GateRule.INFO: "Return {} as info; what the player may know belongs into the observation.",
    GateRule.ENDS: "Count turns in step, whatever the action is, and end at min(max_turns, 64) or before.",
    GateRule.AFTER_END: "Set a flag such as self.over when the episode ends, and answer every later step with reward 0.0.",
    GateRule.REPLAY: "Draw all chance from random.Random(seed) made in reset; sort sets before you show or walk them; show"
    " no object without a __repr__ of its own.",
    GateRule.RESET: "Set every attribute anew in reset; nothing counts or remembers across episodes.",
    GateRule.WITNESS: "Make solution return the actions that win from the state after reset, in visible text; the last must"
    " terminate and pay more than 0.",
    GateRule.FORM: "Games: each action of solution is one \\boxed{...}. Tool use: each is one <tool_call> of a name and "
    "arguments or one <answer>; name every tool in the first observation; answer a call that you can't read with an error text.",
    GateRule.SEED: "Let the seed change the task.",
    GateRule.SILENT: "Pay nothing for empty actions or for waiting.",
    GateRule.OTHER_WITNESS: "Make answers differ more from seed to seed: another seed's solution wins too often.",
    GateRule.TRUNCATED_WITNESS: "Let the last action of solution be needed: without it there is nearly as much pay.",
    GateRule.RANDOM: "Allow fewer attempts, or make more answers possible: chance wins too often.",
    GateRule.COPIER: "Take the answer out of the observation, also reversed or encoded, and compare the whole action with it.",
    GateRule.HINT: "Let the hint name a method and no answer; what an action must look like belongs into the observation.",
    GateRule.CONSTANT: "Compare the whole action with the answer (==, not `in`), take no passwords, and spread answers more "
    "evenly.",
    GateRule.SURVIVES: "Answer any text with an observation: check before you convert (int raises on '²', float takes "
    "'nan'), catch what json.loads raises.",
}
