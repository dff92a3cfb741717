"""The vocabulary that ties documents to the nano model's families: which words of a text point to which kind of task.

Read by the nano dialect, which picks these words out of a document, and by the families of the warm start. Each word belongs to
one family.
"""

FAMILY_WORDS: dict[str, tuple[str, ...]] = {
    "chain": ("dial", "clockwork", "running", "gear", "meter", "winding", "counter", "remainder"),
    "add": ("ledger", "sum", "column", "bill", "receipt", "total", "carry", "account"),
    "follow": ("rule", "implies", "premise", "conclusion", "therefore", "detective", "clue", "proof"),
    "logic": ("truth", "switchboard", "circuit", "signal", "relay", "bit", "wire", "binary"),
    "guess": ("search", "hidden", "halve", "range", "thermometer", "secret", "narrow", "bisect"),
    "walk": ("map", "compass", "north", "harbour", "path", "street", "grid", "journey"),
    "flip": ("mirror", "reflection", "backwards", "shelf", "row", "reverse", "window", "image"),
    "count": ("flock", "bird", "census", "tally", "often", "species", "bead", "stamp"),
    "next": ("rhythm", "sequence", "pattern", "season", "tide", "calendar", "drum", "repeat"),
    "kth": ("podium", "race", "queue", "contest", "ranking", "medal", "judge", "order"),
    "cheap": ("market", "price", "cost", "bargain", "fare", "budget", "shop", "fee"),
    "ask": ("phone", "telephone", "inquire", "dealer", "quote", "vendor", "haggle", "hotline"),
    "toggle": ("lamp", "button", "press", "lever", "toggle", "valve", "panel", "effect"),
    "cause": ("failure", "cause", "fault", "broke", "origin", "blame", "leak", "accident"),
}
"""Family name to its words."""

FAMILY_OF_WORD: dict[str, str] = {word: family for family, words in FAMILY_WORDS.items() for word in words}
"""The same, from word to family."""
