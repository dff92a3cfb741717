"""The committed model: an ordinary folder that loads, writes designs that the real gate admits, and wins more with a hint."""

from pathlib import Path
from typing import Any

import pytest

from infra.dialects import load_dialect
from infra.dialects.nano import SPECIAL_TOKENS, NanoDialect
from infra.suites import load_suite
from trainer.nano.build import MODEL_FOLDER, build
from trainer.nano.evaluate import sample_designs, win_rates
from workers.gate import judge
from workers.sandbox import open_sandbox

DESIGNS = 320
"""So many that a model of which .069 are refused, as of the committed one, is seldom taken for one of which a tenth is."""


@pytest.fixture(scope="module")
def model() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(MODEL_FOLDER).eval()


@pytest.fixture(scope="module")
def dialect() -> NanoDialect:
    return NanoDialect(MODEL_FOLDER)


def test_the_folder_is_small_and_loads_as_any_hugging_face_folder(model: Any, dialect: NanoDialect) -> None:
    from transformers import AutoTokenizer

    assert sum(path.stat().st_size for path in MODEL_FOLDER.iterdir()) < 8_000_000
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    assert len(tokenizer) <= model.config.vocab_size
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    text = "class CountEnv:\n    size = 6\n\n    def reset(self, seed=None):\n        return 'x', {}\n"
    assert tokenizer.encode(text, add_special_tokens=False) == dialect.encode(text)
    assert load_dialect("nano", MODEL_FOLDER).name == "nano"


def test_nine_in_ten_sampled_designs_are_admitted_by_the_gate_and_most_differ(model: Any, dialect: NanoDialect) -> None:
    designs = sample_designs(model, dialect, DESIGNS, seed=11)
    refusals = [error for _, _, error in designs if error]
    sandbox = open_sandbox("zygote", slot_base=80)
    try:
        for source, hint, error in designs:
            if not error:
                verdict = judge(sandbox, source, hint, max_turns=16)
                if not verdict.admitted:
                    refusals.append(f"{verdict.rule}: {verdict.evidence}")
    finally:
        sandbox.close()
    assert len(refusals) <= DESIGNS // 10, refusals
    assert len({source for source, _, _ in designs}) >= 0.8 * DESIGNS
    assert len({dialect.describe(source)[0] for source, _, _ in designs}) >= 10


def test_the_agent_wins_more_with_a_hint_and_leaves_room_to_learn(model: Any, dialect: NanoDialect) -> None:
    items = load_suite("nano")
    plain = win_rates(model, dialect, items, seeds=1, hinted=False)["all"]
    hinted = win_rates(model, dialect, items, seeds=1, hinted=True)["all"]
    assert 0.2 <= plain <= 0.6
    assert hinted >= plain + 0.05


def test_a_short_build_is_repeatable_and_tells_its_progress(tmp_path: Path) -> None:
    told: list[str] = []
    for name in ("one", "two"):
        build(tmp_path / name, seed=3, minutes=0.02, processes=1, tell=told.append)
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert (tmp_path / "one" / "model.safetensors").read_bytes() != (MODEL_FOLDER / "model.safetensors").read_bytes()
    assert any("tokenizer" in line for line in told)
    assert any("written" in line for line in told)
