"""One held-out environment, as a line of a suite's file holds it."""

import msgspec


class SuiteItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One held-out environment."""

    env_id: str
    family: str
    size: int
    skill: str
    source: str  # without `solution`, or with it: the evaluation cuts it out
    hint: str
    max_turns: int
    win_return: float  # an episode wins whose return is at least this
