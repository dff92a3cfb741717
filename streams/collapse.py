"""The collapse control: whether designs repeat each other, over a window of closed generations, and what is done about it.

In: closings, and the slots of closed generations. Out: for a generation that is to be designed, the reaction to what its memory
knows (none: all is well), and its memory lines changed by it. Called by streams/design.py. Pure: a function of the log up to the
generation that memory ends at, so one plan whatever the timing; of a closing that comes twice the first counts, in whatever order
closings come.

The run is compared with itself: with the first window's Vendi/n and share of repetitions. What these are at the start depends on
model and task (nano's programs share their skeletons: Vendi/n .07, and after three generations each of them repeats one).

The reaction: a design prompt shows fewer seeds, and none of the clusters that designs repeat most (streams/clusters.py), which
are named to it as what to keep away from; and each slot has a document of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.selection import BEST, REPEATED
from schemas.design import CollapseReaction, Member, MemoryLine, SlotsClosed
from schemas.score import GenerationClosed, ScoredDesign
from schemas.settings import CollapseSettings, Recipe
from streams.clusters import Clusters


@dataclass(frozen=True)
class Diversity:
    """How different the designs of some generations are."""

    vendi: float  # Vendi score / n, over generations with at least two environments; 0: no generation has
    n: float  # environments a generation that the score was divided by
    repeats: float  # share of designs, dropped near-duplicates too, that repeat an earlier one


@dataclass(frozen=True)
class Reaction:
    """What a generation's design requests are changed by."""

    record: CollapseReaction
    blocked: frozenset[str]  # every environment of the blocked clusters
    negatives: Mapping[str, Sequence[MemoryLine]]  # by skill: the newest environment of each blocked cluster


def measure(closings: Sequence[GenerationClosed], n: float = 0.0) -> Diversity:
    """The diversity of closed generations, each with a design at least. `n`: of what they are held against; the score is divided
    by the smaller number of environments. A score grows with n where designs differ and hardly where they are alike, so over
    more environments Vendi/n would fall, and over fewer the score, though nothing has changed."""
    several = [one for one in closings if one.valid > 1]
    score = sum(one.valid * one.vendi for one in several) / max(1, len(several))
    own = sum(one.valid for one in several) / max(1, len(several))
    n = min(own, n or own)
    repeats = sum(sum(one.repeated.values()) for one in closings)
    return Diversity(
        vendi=score / n if n else 0.0,
        n=n,
        repeats=repeats / sum(map(count_designs, closings)),
    )


def count_designs(closing: GenerationClosed) -> int:
    """Designs that the gate admitted, dropped near-duplicates too."""
    return closing.valid + closing.duplicates


def has_fallen(now: Diversity, start: Diversity, settings: CollapseSettings) -> bool:
    """Whether the control begins to react."""
    return 0 < now.vendi < settings.vendi[0] * start.vendi or now.repeats > start.repeats + settings.repeats[1]


def is_well(now: Diversity, start: Diversity, settings: CollapseSettings) -> bool:
    """Whether the control stops to react."""
    return not 0 < now.vendi < settings.vendi[1] * start.vendi and now.repeats <= start.repeats + settings.repeats[0]


class CollapseControl:
    """What is known of one run's closed generations. `slots`: theirs, which the caller keeps."""

    def __init__(self, recipe: Recipe, slots: Mapping[int, SlotsClosed]) -> None:
        self._settings = recipe.collapse
        self._shows_memory = recipe.memory.enabled
        self._lends = recipe.collapse.borrow_documents and not recipe.corpus.enabled
        self._gives_own = recipe.collapse.own_documents and recipe.design.per_document > 1 and recipe.reads_corpus
        self._slots = slots
        self._closings: dict[int, GenerationClosed] = {}
        self._found: dict[int, Reaction | None] = {}

    def note(self, closing: GenerationClosed) -> None:
        """Keeps a closing; the first of a generation counts."""
        if self._settings.enabled:
            self._closings.setdefault(closing.generation, closing)

    def reaction(self, newest: int | None) -> Reaction | None:
        """What a generation reacts to that sees memory up to `newest`, closed by now (None: it sees none)."""
        if newest is None or not self._settings.enabled:
            return None
        if newest in self._found:
            return self._found[newest]
        found = self._judge(newest)
        if all(generation in self._closings for generation in range(newest + 1)):
            self._found[newest] = found
        return found

    def adapt(self, lines: Sequence[MemoryLine], skill: str, newest: int | None) -> list[MemoryLine]:
        """A prompt's memory lines under the reaction: fewer seeds, then the blocked clusters of the skill, then the other
        negatives. As they are where nothing is reacted to."""
        reaction = self.reaction(newest)
        if reaction is None or not self._shows_memory:
            return list(lines)
        left = [line for line in lines if line.env_id not in reaction.blocked]
        seeds = [line for line in left if line.kind == BEST][: self._settings.seeds]
        return [*seeds, *reaction.negatives.get(skill, ()), *[line for line in left if line.kind != BEST]]

    def _judge(self, newest: int) -> Reaction | None:
        """Goes through the windows in order: the control is on from a fall to the recovery."""
        known = (self._closings[generation] for generation in sorted(self._closings) if generation <= newest)
        played = [closing for closing in known if count_designs(closing)]
        window = self._settings.window
        if len(played) < window:
            return None
        start = now = measure(played[:window])
        since: int | None = None
        for end in range(window, len(played) + 1):
            now = measure(played[end - window : end], start.n)
            if since is None and has_fallen(now, start, self._settings):
                since = played[end - 1].generation
            elif since is not None and is_well(now, start, self._settings):
                since = None
        return None if since is None else self._react(since, now, start, [one.generation for one in played[-window:]], newest)

    def _react(self, since: int, now: Diversity, start: Diversity, window: list[int], newest: int) -> Reaction:
        clusters = Clusters(self._slots, newest)
        largest = clusters.largest(window, self._settings.blocked)
        named: Counter[str] = Counter()
        for (_, first), count in largest.items():
            named[first] += count
        blocked = [one for env_id, one in clusters.members.items() if (one.skill, clusters.first_of(env_id)) in largest]
        record = CollapseReaction(
            since=since,
            window=window,
            vendi=now.vendi,
            start_vendi=start.vendi,
            repeats=now.repeats,
            start_repeats=start.repeats,
            blocked=dict(sorted(named.items())),
            told=self._tell(since, now, start, window, len(largest)),
        )
        negatives = self._negatives(clusters, largest, blocked, newest)
        return Reaction(record, frozenset(member.env_id for member in blocked), negatives)

    def _tell(self, since: int, now: Diversity, start: Diversity, window: list[int], blocked: int) -> str:
        done = [f"{self._settings.seeds} seeds a prompt at most, {blocked} clusters blocked"] if self._shows_memory else []
        done += ["documents, though the corpus is off"] if self._lends else []
        done += ["a document for each slot"] if self._gives_own else []
        return (
            f"in generations {window[0]} to {window[-1]} Vendi/n {now.vendi:.3f} (at the start {start.vendi:.3f}), repetitions "
            f"{now.repeats:.0%} (at the start {start.repeats:.0%}). Since generation {since} closed: {', '.join(done)}"
        )

    def _negatives(
        self, clusters: Clusters, largest: Mapping[tuple[str, str], int], blocked: Sequence[Member], newest: int
    ) -> dict[str, list[MemoryLine]]:
        """By skill, the newest environment of each blocked cluster that was not evicted; the largest clusters' first. `blocked`:
        the oldest first."""
        designs = {
            design.env_id: design
            for generation, closing in self._closings.items()
            if generation <= newest
            for design in closing.designs
        }
        probes = [probe for generation, closing in self._closings.items() if generation <= newest for probe in closing.probes]
        evicted = {probe.env_id for probe in probes if probe.evicted}
        shown: dict[tuple[str, str], MemoryLine] = {}
        for member in blocked:
            design = designs.get(member.env_id)
            if design is not None and not design.evicted and member.env_id not in evicted:
                shown[member.skill, clusters.first_of(member.env_id)] = _negative(member, design)
        found: dict[str, list[MemoryLine]] = {}
        for skill, first in largest:  # of each skill the largest first
            if (skill, first) in shown:
                found.setdefault(skill, []).append(shown[skill, first])
        return found


def _negative(member: Member, design: ScoredDesign) -> MemoryLine:
    return MemoryLine(
        env_id=member.env_id,
        kind=REPEATED,
        skill=member.skill,
        source=member.source,
        hint=member.hint,
        win_rate=design.win_rate,
        regret=design.regret,
    )
