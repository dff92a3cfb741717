"""The chat dialects over small models of six template families: prompts, turns, designs, and what can't be read, by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.dialects import Dialect, load_dialect, recipe_dialect
from infra.dialects.chat import ChatDialect
from infra.dialects.prompts import FOLDER, about_skill, read_prompt
from infra.dialects.template import ChatTemplate
from infra.examples import EXAMPLES, worked_example
from schemas.design import DesignSlot, Document, MemoryLine
from schemas.errors import ModelError
from schemas.recipes import build_recipe
from schemas.settings import GAMES_SKILLS, TOOLS_SKILLS
from tests.chatmodels import MODELS, write_model
from workers.design import HintDialect

SOURCE = "import random\n\n\nclass SumEnv:\n    pass\n"
DESIGN = f"```python\n{SOURCE}```\n<hint>\nCount in steps.\n</hint>"
MARKS = [
    "<|im_end|>",
    "<|im_start|>assistant",
    "<|eot|>",
    "<end_of_turn>",
    "</s>",
    "<think>",
    "<|endoftext|>",
    "<|im_<|im_end|>end|>",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {name: write_model(base / name, name) for name in MODELS}


def chat(folder: Path, setting: str = "games", **options: object) -> ChatDialect:
    dialect = load_dialect(setting, folder, **options)  # type: ignore[arg-type] # options of the chat dialects
    assert isinstance(dialect, ChatDialect)
    return dialect


def written(folder: Path, text: str, ended: bool = True) -> list[int]:
    """Token ids of a completion as the model writes it: with its own tokens for tags, and the end of the turn."""
    template = ChatTemplate(folder)
    return [*template._encode(text), *([min(template.stop_ids)] if ended else [])]


def slot(
    text: str = "A town with five bridges.", memory: list[MemoryLine] | None = None, skill: str = "Optimization"
) -> DesignSlot:
    return DesignSlot(
        slot=0,
        design_attempt=0,
        env_id="e",
        skill=skill,
        document=Document(document_id="d", title="Bridges", text=text),
        group="d",
        memory=memory or [],
    )


def line(kind: str, source: str = SOURCE) -> MemoryLine:
    return MemoryLine(env_id="e", kind=kind, skill="s", source=source, hint="h", win_rate=0.5, regret=0.25)


@pytest.mark.parametrize("name", MODELS)
def test_a_conversation_is_that_of_the_models_own_template(folders: dict[str, Path], name: str) -> None:
    """Rendered by transformers over the whole conversation, the same text but for what templates do to the model's own turns."""
    from transformers import PreTrainedTokenizerFast

    folder = folders[name]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    held = config.get("chat_template") or (folder / "chat_template.jinja").read_text()
    template = held if isinstance(held, str) else held[0]["template"]
    real = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        eos_token=config["eos_token"]["content"],
        **({"bos_token": config["bos_token"]} if "bos_token" in config else {}),
    )
    dialect = chat(folder)
    system = read_prompt("play", "games")
    opened = [{"role": "system", "content": system}, {"role": "user", "content": "Look."}]
    if name == "gemma":
        opened = [{"role": "user", "content": f"{system}\n\nLook."}]
    spoken = [*opened, {"role": "assistant", "content": "\\boxed{1}"}, {"role": "user", "content": "Go on."}]
    told = [
        str(real.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True))
        for messages in (opened, spoken)
    ]
    prompt = dialect.open_play("Look.", None)
    turn = written(folder, "\\boxed{1}", ended=False)
    if name == "llama":  # its template shows the day: ours is fixed
        told = [text.replace(text.split("Today: ")[1][:11], "01 Jan 2025") for text in told]
    assert dialect._template.decode(prompt) == told[0]
    whole = dialect._template.decode([*prompt, *turn, *dialect.continue_play("Go on.")])
    assert whole.replace("<think>\n\\boxed", "\\boxed") == told[1]


@pytest.mark.parametrize("name", MODELS)
def test_a_turn_that_ended_is_not_ended_twice_and_one_that_was_cut_is_ended(folders: dict[str, Path], name: str) -> None:
    dialect = chat(folders[name])
    cut = dialect.continue_play("Go on.", dialect._template.encode_text("a")[0])
    assert cut == dialect.continue_play("Go on.", None)
    own = cut[0]
    assert own in dialect.play_stop_ids
    assert [own, *dialect.continue_play("Go on.", own)] == cut


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", MARKS)
def test_foreign_text_holds_no_mark_whatever_it_says(folders: dict[str, Path], name: str, text: str) -> None:
    dialect = chat(folders[name])
    clean, hostile = dialect.open_play("x", "y"), dialect.open_play(f"{text}{text}x", f"y{text}")
    marks = {token for token in range(500) if token in dialect._template._added}
    used = {*dialect.open_play("", None), *dialect.continue_play("")} & marks

    def shown(ids: list[int]) -> list[int]:
        return [token for token in ids if token in used or dialect._template.is_special(token)]

    assert shown(hostile) == shown(clean)
    assert dialect._template.decode(hostile).count(text) >= 3
    assert dialect._template.decode(dialect._template.encode_text(text * 2)) == text * 2


@pytest.mark.parametrize("name", MODELS)
def test_designs_and_turns_are_read_back(folders: dict[str, Path], name: str) -> None:
    games, tools = chat(folders[name]), chat(folders[name], "tools")
    thought = "" if not games._template.opens_thinking else "I see. </think>"
    parsed = games.parse_design(written(folders[name], f"{thought}\n{DESIGN}\n"))
    assert (parsed.source, parsed.hint, parsed.error) == (SOURCE, "Count in steps.", "")
    turn = games.read_turn(written(folders[name], f"{thought}Thus \\boxed{{7}}."))
    assert (turn.action, turn.fault) == ("\\boxed{7}", "")
    turn = tools.read_turn(written(folders[name], f"{thought}Done. <answer>7</answer>"))
    assert (turn.action, turn.fault) == ("<answer>7</answer>", "")


@pytest.mark.parametrize(
    ("text", "ended", "error"),
    [
        ("<think>" + DESIGN, True, "a thinking block is never closed"),
        ("<think>hm", False, "a thinking block is never closed: the design is cut after"),
        (DESIGN, False, "the design is cut after"),
        (f"```python\n{SOURCE}", True, "the python fence is never closed"),
        (f"```python\n{SOURCE}", False, "the python fence is never closed: the design is cut after"),
        (SOURCE, True, "no python fence"),
        (f"Here it is:\n{DESIGN}", True, "text before the python fence"),
        (DESIGN.replace("```python", "```"), True, "the first fence is no python fence"),
        (DESIGN.replace("```python", "```json"), True, "the first fence is no python fence"),
        (DESIGN + "\n" + DESIGN, True, "more than one fence"),
        (f"```python\n{SOURCE}```", True, "no hint"),
        (f"```python\n{SOURCE}```\n<hint>halve", True, "the hint is never closed"),
        (DESIGN + "<hint>again</hint>", True, "more than one hint"),
        (DESIGN + "\nGood luck!", True, "text beside the fence and the hint"),
        (f"```python\n{SOURCE}```\n<hint> \n</hint>", True, "an empty hint"),
        (f"```python\n{SOURCE}```\n<hint>{'step ' * 100}</hint>", True, "a hint of 100 words, fewer than 100 are due"),
        ("```python\n\n```\n<hint>note</hint>", True, "an empty source"),
        ("```python\nx = '<|endoftext|>'\n```\n<hint>note</hint>", True, "a special token in a place where text is due"),
        ("", True, "no python fence"),
    ],
)
def test_a_design_that_can_not_be_read_says_why(folders: dict[str, Path], text: str, ended: bool, error: str) -> None:
    assert chat(folders["qwen"]).parse_design(written(folders["qwen"], text, ended)).error.startswith(error)


def test_half_a_letter_is_no_text(folders: dict[str, Path]) -> None:
    template = ChatTemplate(folders["qwen"])
    half = template.encode_text("é")[:1]
    ids = [
        *template.encode_text("```python\nx = '"),
        *half,
        *template.encode_text("'\n```\n<hint>note</hint>"),
        min(template.stop_ids),
    ]
    assert "UTF-8" in chat(folders["qwen"]).parse_design(ids).error


def test_tags_of_the_settings_are_text_even_where_a_tokenizer_has_special_tokens_for_them(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "llama", extra=["<tool_call>", "</tool_call>"])
    source = "x = '<tool_call>{}</tool_call>'\n"
    ids = written(folder, f"```python\n{source}```\n<hint>note</hint>")
    parsed = chat(folder, "tools").parse_design(ids)
    assert (parsed.source, parsed.error) == (source, "")
    call = '<tool_call>{"name": "x", "arguments": {}}</tool_call>'
    assert chat(folder, "tools").read_turn(written(folder, call)).action == call


def test_special_tokens_in_thinking_are_the_models_own(folders: dict[str, Path]) -> None:
    ids = written(folders["qwen"], f"<think>a <|endoftext|> b</think>\n\n{DESIGN}")
    assert chat(folders["qwen"]).parse_design(ids).error == ""


@pytest.mark.parametrize(
    ("setting", "text", "action", "fault"),
    [
        ("games", "<think>\\boxed{1}</think> so \\boxed{2}", "\\boxed{2}", ""),
        ("games", "<think>it is \\boxed{1}", "", "a thinking block is never closed"),
        ("games", "<think>it is \\boxed{1}</think> one", "", "no box"),
        ("games", "seven", "", "no box"),
        (
            "tools",
            '<tool_call>{"name": "x", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "x", "arguments": {}}</tool_call>',
            "",
        ),
        ("tools", "<think><answer>1</answer></think><answer>2</answer>", "<answer>2</answer>", ""),
        ("tools", "<answer>1</answer><answer>2</answer>", "", "more than one call or answer"),
    ],
)
def test_a_turn_is_read_behind_its_thinking(folders: dict[str, Path], setting: str, text: str, action: str, fault: str) -> None:
    turn = chat(folders["qwen"], setting).read_turn(written(folders["qwen"], text))
    assert (turn.action, turn.fault) == (action, fault)


def test_thinking_that_the_template_opens_is_closed_by_the_model(folders: dict[str, Path]) -> None:
    dialect = chat(folders["eager"])
    assert dialect.read_turn(written(folders["eager"], "it is one</think>\\boxed{1}")).action == "\\boxed{1}"
    assert dialect.read_turn(written(folders["eager"], "it is \\boxed{1}")).fault == "a thinking block is never closed"


def test_a_model_that_may_not_think_is_told_so_by_its_template(folders: dict[str, Path]) -> None:
    thinking, silent = (chat(folders["qwen"], thinking=choice) for choice in (True, False))
    assert thinking._template.decode(thinking.open_play("x", None)).endswith("<|im_start|>assistant\n")
    assert silent._template.decode(silent.open_play("x", None)).endswith("<think>\n\n</think>\n\n")
    assert silent.read_turn(written(folders["qwen"], "\\boxed{3}")).action == "\\boxed{3}"


@pytest.mark.parametrize(("setting", "skills"), [("games", GAMES_SKILLS), ("tools", TOOLS_SKILLS)])
def test_every_skill_has_its_text_and_another_skills_example(
    setting: str, skills: tuple[str, ...], folders: dict[str, Path]
) -> None:
    dialect = chat(folders["qwen"], setting)
    for skill in skills:
        text = dialect._template.decode(dialect.design_prompt(slot(skill=skill)))
        assert about_skill(setting, skill) in text
        assert about_skill(setting, skill).startswith(f"{skill}: ")
        example = worked_example(setting, skill)
        assert example.skill != skill
        assert example.source.strip() in text
        assert "$" not in text
    assert {example.skill for example in EXAMPLES if example.setting == setting} == set(skills)
    assert len(list((FOLDER / setting / "skills").glob("*.txt"))) == len(skills)


def test_the_design_prompt_holds_document_and_memory_and_asks_for_the_form(folders: dict[str, Path]) -> None:
    dialect = chat(folders["qwen"])
    lines = [line("best", "class AEnv: pass"), line("hard", "class BEnv: pass"), line("easy", "class CEnv: pass")]
    text = dialect._template.decode(dialect.design_prompt(slot("Costs $5 <|im_end|>.", lines)))
    for held in ("Bridges", "Costs $5 <|im_end|>.", "class AEnv: pass", "class CEnv: pass", "50%", "0.25", "<hint>", "```python"):
        assert held in text


def test_a_second_call_writes_the_hint_where_the_recipe_says_so(folders: dict[str, Path]) -> None:
    recipe = build_recipe({"algorithm": "published", "model": {"dialect": "games"}})
    dialect = recipe_dialect(recipe, folders["qwen"])
    assert isinstance(dialect, HintDialect)
    assert isinstance(dialect, ChatDialect)
    assert "<hint>" not in dialect._template.decode(dialect.design_prompt(slot()))
    parsed = dialect.parse_design(written(folders["qwen"], f"```python\n{SOURCE}```"))
    assert (parsed.source, parsed.hint, parsed.error) == (SOURCE, "", "")
    assert dialect.parse_design(written(folders["qwen"], DESIGN)).error == "text after the fence"
    assert SOURCE in dialect._template.decode(dialect.hint_prompt(SOURCE))
    assert dialect.parse_hint(written(folders["qwen"], "<think>a</think><hint>halve it</hint>")) == "halve it"
    assert dialect.parse_hint(written(folders["qwen"], "<hint>halve it</hint>", ended=False)) == ""
    assert dialect.parse_hint(written(folders["qwen"], "halve it")) == ""


@pytest.mark.parametrize("room", [3500, 6000, 12_000])
def test_a_design_prompt_keeps_to_its_room(folders: dict[str, Path], room: int) -> None:
    dialect = chat(folders["qwen"], prompt_tokens=room)
    least = len(dialect.design_prompt(slot("")))
    long = slot("word " * 20_000, [line("best", "x = 1\n" * 400), line("best", "y = 2\n" * 400), line("easy", "z = 3\n" * 400)])
    prompt = dialect.design_prompt(long)
    assert least <= len(prompt) <= max(room, least)
    text = dialect._template.decode(prompt)
    assert text.count("word ") == 0 or "[cut]" in text


@pytest.mark.parametrize("name", MODELS)
def test_a_dialect_is_the_same_whenever_it_is_made(folders: dict[str, Path], name: str) -> None:
    one, other = chat(folders[name]), chat(folders[name])
    assert one.open_play("x", "y") == other.open_play("x", "y")
    assert one.design_prompt(slot()) == other.design_prompt(slot())


def test_a_folder_that_can_not_be_spoken_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer"):
        load_dialect("games", tmp_path)
    folder = write_model(tmp_path / "model", "qwen")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ModelError, match="does not show each message once"):
        load_dialect("games", folder)
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelError, match="can't be rendered"):
        load_dialect("games", folder)
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}{{ messages[0].nothing.at.all }}")
    with pytest.raises(ModelError, match="can't be rendered"):
        load_dialect("games", folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        load_dialect("games", folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="can't be read"):
        load_dialect("games", folder)


def test_a_model_without_an_end_of_turn_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "zephyr")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    )
    with pytest.raises(ModelError, match="which token ends a turn"):
        load_dialect("games", folder)


def test_the_dialects_need_no_heavy_library() -> None:
    code = "import sys, infra.dialects.chat; print(sorted({'torch', 'transformers', 'numpy', 'gymnasium'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_both_settings_speak_by_one_protocol(folders: dict[str, Path]) -> None:
    dialects: list[Dialect] = [load_dialect(setting, folders["smol"]) for setting in ("games", "tools")]
    assert [dialect.name for dialect in dialects] == ["games", "tools"]
    assert [dialect.describe(SOURCE) for dialect in dialects] == [("other", 0)] * 2
