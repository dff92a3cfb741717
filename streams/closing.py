"""How a generation's slots close: members, near-duplicates, what is missing, which rejected designs are trained.

In: the verdicts of all attempts, signatures of earlier designs. Out: SlotsClosed. Called by streams/design.py. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from infra.sourcetext import PERMUTATIONS
from schemas import ids
from schemas.design import EnvRejected, EnvValidated, Member, MissingSlot, Probe, RejectedDesign, SlotsClosed
from schemas.settings import Recipe
from streams.diversity import REPEAT_SIMILARITY, nearest

Verdict = EnvValidated | EnvRejected
Signature = NDArray[np.uint64]
LOST = "lost"
DUPLICATE = "duplicate"


class Signatures:
    """MinHash signatures of validated designs: of open generations, and of the members of closed ones."""

    def __init__(self) -> None:
        self._by_env: dict[str, Signature] = {}

    def note(self, validated: EnvValidated) -> None:
        """Keeps a design's signature, 1 KB each; one of another length, which no gate of ours wrote, tells nothing."""
        if len(validated.signature) != PERMUTATIONS:
            return
        self._by_env.setdefault(validated.env_id, np.asarray(validated.signature, dtype=np.uint64))

    def close(self, slots: SlotsClosed) -> None:
        """Drops the signatures of designs that did not become members."""
        for dropped in slots.duplicates:
            self._by_env.pop(dropped.env_id, None)

    def of(self, env_id: str) -> Signature:
        """A design's signature; empty where none is known."""
        return self._by_env.get(env_id, np.zeros(0, dtype=np.uint64))

    def of_members(self, closed: Sequence[SlotsClosed]) -> dict[str, Signature]:
        """The signatures of all members of these generations by env_id, the earliest first."""
        members = [one.env_id for slots in sorted(closed, key=lambda slots: slots.generation) for one in slots.members]
        return {env_id: self._by_env[env_id] for env_id in members if env_id in self._by_env}


def close_slots(
    run_id: str,
    recipe: Recipe,
    generation: int,
    policy_version: int,
    verdicts: Mapping[tuple[int, int], Verdict],
    signatures: Signatures,
    earlier: Sequence[SlotsClosed],
    probes: Sequence[Probe] = (),
) -> SlotsClosed:
    """Decides every slot by its last attempt.

    `verdicts`: by (slot, attempt), complete; `earlier`: the closed generations that new designs are compared with; `probes`: what
    the generation plays again beside its members.
    """
    last = {slot: verdicts[slot, attempt] for slot, attempt in sorted(verdicts)}
    members, duplicates = _select_members(recipe, [last[slot] for slot in sorted(last)], signatures, earlier)
    dropped = {duplicate.env_id: duplicate for duplicate in duplicates}
    refused = [verdicts[key] for key in sorted(verdicts) if _is_refused(verdicts[key], dropped)]
    rules = Counter(verdict.rule if isinstance(verdict, EnvRejected) else DUPLICATE for verdict in refused)
    kept = [_rejected(verdict) for verdict in refused if not (isinstance(verdict, EnvRejected) and verdict.rule == LOST)]
    return SlotsClosed(
        run_id=run_id,
        event_id=ids.event_id("slots-closed", run_id, generation),
        causation_id=verdicts[max(verdicts)].event_id,
        generation=generation,
        policy_version=policy_version,
        members=members,
        duplicates=duplicates,
        missing=[
            MissingSlot(slot=slot, env_id=verdict.env_id, reason=f"{verdict.rule}: {verdict.evidence}")
            for slot, verdict in sorted(last.items())
            if isinstance(verdict, EnvRejected)
        ],
        rejected=kept[: len(members)] if recipe.design.train_rejected else [],
        proposed=len(verdicts),
        rejected_by_rule=dict(sorted(rules.items())),
        probes=list(probes),
    )


def _select_members(
    recipe: Recipe, last: Sequence[Verdict], signatures: Signatures, earlier: Sequence[SlotsClosed]
) -> tuple[list[Member], list[MissingSlot]]:
    """Members in slot order and the near-duplicates that were dropped for an earlier one."""
    earlier_members = signatures.of_members(earlier)
    history = np.asarray(list(earlier_members.values()), dtype=np.uint64)
    before = list(earlier_members)
    current: dict[str, Signature] = {}
    digests: set[tuple[str, str]] = set()
    members, duplicates = [], []
    for verdict in last:
        if not isinstance(verdict, EnvValidated):
            continue
        signature = signatures.of(verdict.env_id)
        similarity, repeats = max(
            _nearest(signature, before, history),
            _nearest(signature, list(current), list(current.values())),
            key=lambda one: one[0],
        )
        if recipe.design.duplicate == "drop" and similarity >= recipe.design.duplicate_similarity:
            reason = f"{DUPLICATE}: similarity {similarity:.2f} to an earlier design"
            duplicates.append(MissingSlot(slot=verdict.slot, env_id=verdict.env_id, reason=reason, repeats=repeats))
            continue
        code = (verdict.group, verdict.source_digest)
        repeats = repeats if similarity >= REPEAT_SIMILARITY else ""
        members.append(_member(verdict, similarity, repeats, identical=code in digests))
        digests.add(code)
        if len(signature):
            current[verdict.env_id] = signature
    return members, duplicates


def _nearest(signature: Signature, env_ids: Sequence[str], signatures: Sequence[Signature] | Signature) -> tuple[float, str]:
    """Similarity to the nearest of these designs, and which it is: the first of equals."""
    similarity, place = nearest(signature, signatures)
    return similarity, env_ids[place] if place >= 0 else ""


def _member(verdict: EnvValidated, similarity: float, repeats: str, *, identical: bool) -> Member:
    return Member(
        env_id=verdict.env_id,
        slot=verdict.slot,
        design_attempt=verdict.design_attempt,
        skill=verdict.skill,
        document_id=verdict.document_id,
        group=verdict.group,
        source=verdict.source,
        hint=verdict.hint,
        proposal=verdict.proposal,
        source_digest=verdict.source_digest,
        witness_min_return=verdict.witness_min_return,
        reward_min=verdict.reward_min,
        repeated=similarity,
        repeats=repeats,
        identical=identical,
        versions=verdict.versions,
    )


def _is_refused(verdict: Verdict, dropped: Mapping[str, MissingSlot]) -> bool:
    return isinstance(verdict, EnvRejected) or verdict.env_id in dropped


def _rejected(verdict: Verdict) -> RejectedDesign:
    return RejectedDesign(
        env_id=verdict.env_id,
        slot=verdict.slot,
        design_attempt=verdict.design_attempt,
        skill=verdict.skill,
        group=verdict.group,
        rule=verdict.rule if isinstance(verdict, EnvRejected) else DUPLICATE,
        proposal=verdict.proposal,
        versions=verdict.versions,
    )
