"""The nano model's tokenizer: byte-level BPE whose vocabulary also holds the idiom's whole lines.

In: texts of the warm start. Out: an ordinary Hugging Face fast tokenizer folder. Before merging, digits, capital letters of
data, lone small letters (variable names) and the signs between them are isolated, and a new line with its indent begins a
piece; pieces of code that come often become one token each (added tokens, not special), the rest of the vocabulary is learnt by
BPE. How it differs from plain BPE: a fixed line of 60 characters costs one entry in place of about fifty merges. Called by the
build.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from infra.dialects.nano import SPECIAL_TOKENS

VOCABULARY = 768
LINES = 300
"""How many whole pieces of code become tokens, at most."""
SHORTEST_LINE = 7
"""Characters of the shortest piece that becomes a token: shorter ones could stand in observations."""
ISOLATED = r"\d|[A-Z](?![a-z])|(?<![A-Za-z_])[a-z](?![A-Za-z_\"'])|[-+*=<>:](?=[A-Z0-9])"
"""What always is a token of its own."""


def pieces_of(source: str) -> list[str]:
    """The pieces of a source between isolated characters; new lines and the indent after them begin a piece."""
    found: list[str] = []
    for index, part in enumerate(re.split(f"({ISOLATED})", source)):
        if index % 2 == 0:
            found += [piece for piece in re.split(r"(?<!\n)(?=\n)", part) if piece]
    return found


def choose_lines(sources: Iterable[str], texts: Iterable[str]) -> list[str]:
    """The pieces of code and words of other text that save the most tokens, by how often they come and how long they are."""
    counts = Counter(piece for source in sources for piece in pieces_of(source) if len(piece) >= SHORTEST_LINE)
    counts.update(word for text in texts for word in re.findall(r" ?[a-z]{4,}", text))
    worth = sorted(counts, key=lambda piece: (-counts[piece] * (len(piece) - 2), piece))
    return worth[:LINES]


def train_tokenizer(sources: Sequence[str], texts: Sequence[str]) -> Tokenizer:
    """The tokenizer over designs (`sources`) and all other text (observations, workings, hints, prompts); deterministic."""
    lines = choose_lines(sources, texts)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(ISOLATED), "isolated"),
            pre_tokenizers.Split(Regex(r"\n *"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    known = set(lines)
    rest = ["".join(piece if piece not in known else "\n" for piece in pieces_of(source)) for source in sources]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(lines),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=24,
    )
    tokenizer.train_from_iterator([*texts, *rest], trainer)
    tokenizer.add_tokens([AddedToken(line, normalized=False) for line in lines if tokenizer.token_to_id(line) is None])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the tokenizer's three files: `AutoTokenizer.from_pretrained` loads the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = {"pad_token": "<pad>", "eos_token": "<eos>"}
    extra = [token for token in SPECIAL_TOKENS if token not in marks.values()]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
        "additional_special_tokens": extra,
        **marks,
    }
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "special_tokens_map.json", {**marks, "additional_special_tokens": extra})


def write_json(path: Path, value: object) -> None:
    """A value as indented JSON with a last newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
