"""The nano dialect: what is written reads back, what others wrote stays plain text, what can't be read is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.dialects import load_dialect
from infra.dialects.nano import ACT, CODE, DESIGN, EOS, HINT, PLAY, SAY, SPECIAL_TOKENS, NanoDialect
from schemas.design import DesignSlot, Document, MemoryLine
from schemas.errors import ModelError, SettingsError
from trainer.nano.tokenizer import save_tokenizer, train_tokenizer

SOURCE = 'import random\n\n\nclass CountEnv:\n    skill = "Pattern Recognition"\n    size = 6\n'


@pytest.fixture(scope="module")
def dialect(tmp_path_factory: pytest.TempPathFactory) -> NanoDialect:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer([SOURCE] * 50, ["count B in AAB", "keep a tally", "Pattern Recognition"] * 20), folder)
    return NanoDialect(folder)


def line(kind: str, source: str) -> MemoryLine:
    return MemoryLine(env_id="e", kind=kind, skill="s", source=source, hint="h", win_rate=0.5, regret=0.1)


def slot(memory: list[MemoryLine]) -> DesignSlot:
    document = Document(document_id="d", title="A Bead", text="The flock of birds <code> and one lamp.")
    return DesignSlot(
        slot=0, design_attempt=0, env_id="e", skill="Pattern Recognition", document=document, group="d", memory=memory
    )


def test_a_design_reads_back_to_exactly_what_was_written(dialect: NanoDialect) -> None:
    parsed = dialect.parse_design(dialect.write_design(SOURCE, "keep a tally"))
    assert (parsed.source, parsed.hint, parsed.error) == (SOURCE, "keep a tally", "")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda ids: ids[:-1], "does not end"),
        (lambda ids: [token for token in ids if token != HINT], "0 hint marks"),
        (lambda ids: [*ids[:-1], HINT, EOS], "2 hint marks"),
        (lambda ids: [SAY, *ids], "a mark in a place"),
        (lambda ids: [HINT, *ids[ids.index(HINT) + 1 :]], "empty source"),
        (lambda ids: [*ids[: ids.index(HINT) + 1], EOS], "empty source or hint"),
        (lambda ids: [], "does not end"),
    ],
)
def test_a_design_that_cannot_be_read_says_why(dialect: NanoDialect, spoil: object, reason: str) -> None:
    assert callable(spoil)
    assert reason in dialect.parse_design(spoil(dialect.write_design(SOURCE, "keep a tally"))).error


def test_bytes_that_are_no_text_are_an_error(dialect: NanoDialect) -> None:
    half = dialect.encode("é")[:1]
    assert "UTF-8" in dialect.parse_design([*dialect.encode(SOURCE), *half, HINT, *dialect.encode("note"), EOS]).error


def test_the_design_prompt_holds_skill_words_and_memory(dialect: NanoDialect) -> None:
    ids = dialect.design_prompt(slot([line("best", SOURCE), line("easy", "class X: pass"), line("repeated", SOURCE)]))
    assert (ids[0], ids[-1]) == (DESIGN, CODE)
    assert dialect.decode(ids[1:-1]) == "Pattern Recognition\nbead flock bird lamp\nbest count 6"
    assert not set(ids[1:-1]) & set(range(len(SPECIAL_TOKENS)))


def test_memory_lines_beyond_six_are_left_out(dialect: NanoDialect) -> None:
    ids = dialect.design_prompt(slot([line("hard", SOURCE)] * 9))
    assert dialect.decode(ids).count("hard count 6") == 6


def test_marks_in_foreign_text_stay_plain_text(dialect: NanoDialect) -> None:
    ids = dialect.open_play("<act> 7 <eos>", "<say> it")
    assert [token for token in ids if token < len(SPECIAL_TOKENS)] == [PLAY, HINT, SAY]
    assert dialect.decode(ids) == "<play><act> 7 <eos><hint><say> it<say>"
    assert [token for token in dialect.continue_play("<hint>") if token < len(SPECIAL_TOKENS)] == [PLAY, SAY]


def test_a_play_without_hint_is_the_play_with_it_less_the_note(dialect: NanoDialect) -> None:
    plain, hinted = dialect.open_play("count B in AAB", None), dialect.open_play("count B in AAB", "keep a tally")
    assert hinted[: len(plain) - 1] == plain[:-1]
    assert dialect.decode(hinted[len(plain) - 1 :]) == "<hint>keep a tally<say>"


def test_the_action_is_what_follows_the_last_act_mark(dialect: NanoDialect) -> None:
    assert dialect.parse_action(dialect.write_turn("A1B2", "2")) == "2"
    assert dialect.parse_action(dialect.write_turn("", "AB")) == "AB"
    assert dialect.parse_action([*dialect.encode("1"), ACT, *dialect.encode("2"), ACT, *dialect.encode("3")]) == "3"
    assert dialect.parse_action(dialect.encode("2")) == ""
    assert dialect.parse_action([]) == ""


@pytest.mark.parametrize("text", ["", "plain", "日本 é \x00 \u2028", "\n\n    def x(a):\n\treturn 1", "ABC 123 a b"])
def test_any_text_survives_the_tokenizer(dialect: NanoDialect, text: str) -> None:
    assert dialect.decode(dialect.encode(text)) == text


def test_a_source_declares_family_and_size(dialect: NanoDialect) -> None:
    assert dialect.describe(SOURCE) == ("count", 6)
    assert dialect.describe("class Other:\n    pass") == ("other", 0)


def test_an_unknown_dialect_and_an_unfit_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unheard"):
        load_dialect("unheard", tmp_path)
    with pytest.raises(ModelError, match="no tokenizer"):
        load_dialect("nano", tmp_path)
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match="<pad>"):
        load_dialect("nano", tmp_path)


def test_the_dialect_needs_no_heavy_library() -> None:
    code = "import sys, infra.dialects.nano; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
