"""Causal Inference: what a series of presses leaves lit, and the first cause of a failure."""

import re
from random import Random

from infra.dialects.words import FAMILY_WORDS
from trainer.nano.families.deduction import draw_links
from trainer.nano.family import Family, Program


def _draw_toggle(rng: Random, size: int) -> Program:
    word, offset = rng.choice((("next", "1"), ("previous", "self.lamps - 1")))
    return Program(
        reset="""        $r = random.Random(seed)
        $s = [0] * self.lamps
        $t = ""
        for _ in range(self.size):
            $i = $r.randrange(self.lamps)
            for $j in ($i, ($i + $offset) % self.lamps):
                $s[$j] = 1 - $s[$j]
            $t += str($i)
        self.goal = "".join(map(str, $s))
        return f"$phrase {self.lamps} $word press {$t}", {}
""",
        fields=f"    lamps = {rng.randrange(3, 6)}\n",
        values=(("phrase", rng.choice(("lamps", "lights", "valves"))), ("word", word), ("offset", offset)),
    )


def _work_toggle(observation: str) -> str:
    found = re.search(r"(\d) (next|previous) press (\d+)", observation)
    lamps, word, presses = found.groups()  # type: ignore[union-attr]  # documented to raise
    lit, said = [0] * int(lamps), []
    for press in presses:
        for each in (int(press), (int(press) + (1 if word == "next" else -1)) % int(lamps)):
            lit[each] = 1 - lit[each]
        said.append(press + ":" + "".join(map(str, lit)))
    return " ".join(said)


def _draw_cause(rng: Random, size: int) -> Program:
    return draw_links(rng, ("why", "root of", "what broke"), "in", goal="0", shown="self.size")


def _work_cause(observation: str) -> str:
    links = {effect: cause for cause, effect in re.findall(r"\b([A-Z])([A-Z])\b", observation)}
    at = re.search(r"([A-Z]) in", observation).group(1)  # type: ignore[union-attr]  # documented to raise
    said = at
    while at in links:
        at = links[at]
        said += at
    return said


FAMILIES = (
    Family(
        name="toggle",
        skill="Causal Inference",
        sizes=(1, 9),
        easy=(1, 2),
        keywords=FAMILY_WORDS["toggle"],
        hints=(
            "write all lamps after every press",
            "keep the whole state and change it press by press",
            "note the state after each press",
        ),
        draw=_draw_toggle,
        work=_work_toggle,
        practice=0.8,
    ),
    Family(
        name="cause",
        skill="Causal Inference",
        sizes=(2, 9),
        easy=(2, 3),
        keywords=FAMILY_WORDS["cause"],
        hints=(
            "go back link by link and write each",
            "trace every effect to its cause",
            "write the links backwards until none is left",
        ),
        draw=_draw_cause,
        work=_work_cause,
        practice=1.6,
    ),
)
