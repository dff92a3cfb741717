"""Small tokenizers with chat templates of the kinds that real models have, written to a folder as a model's folder holds them.

Each is a byte-level BPE over a few texts, so any text survives it, and a template in our own words with one peculiarity of a
family: `qwen` strips thinking out of earlier turns and answers enable_thinking, `llama` trims contents, dates its system header
and begins with a token of its own, `smol` adds a default system text and marks the model's text with a generation block, `gemma`
refuses system messages, `zephyr` ends turns with the end of text, `eager` opens the thinking block itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "You play a game of text. Each message shows what you see. Answer with \\boxed{42}.",
    'def step(self, action):\n        return "Right.", 1.0, True, False, {}\n',
    '<tool_call>{"name": "count", "arguments": {"shelf": "east"}}</tool_call><answer>done</answer>',
    "import random\n\n\nclass SumEnv:\n    def __init__(self, max_turns=25):\n        self.over = True\n",
] * 8

QWEN = """{%- if messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
  {%- elif message.role == 'assistant' %}
    {%- set said = message.content.split('</think>')[-1].lstrip('\\n') %}
    {{- '<|im_start|>assistant\\n' + said + '<|im_end|>\\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
  {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
LLAMA = """{{- bos_token }}{%- set date = strftime_now('%d %b %Y') if strftime_now is defined else 'never' %}
{%- if messages[0]['role'] == 'system' %}{%- set said = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set said = '' %}{%- endif %}
{{- '<|start|>system<|end|>\\n\\nToday: ' + date + '\\n\\n' + said + '<|eot|>' }}
{%- for message in messages %}
{{- '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{%- endif %}"""
SMOL = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\\nYou are a helper.<|im_end|>\\n' }}{% endif %}
{% if message['role'] == 'assistant' %}
{{ '<|im_start|>assistant\\n' }}{% generation %}{{ message['content'] + '<|im_end|>\\n' }}{% endgeneration %}
{% else %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}
{{- message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
ZEPHYR = """{% for message in messages %}
{{- '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""
EAGER = """{% for message in messages %}
{%- if message['role'] == 'assistant' %}
{{- '<|im_start|>assistant\\n' + message['content'].split('</think>')|last + '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""

# name: template, special tokens, added tokens that are no special ones, (bos, eos) as tokenizer_config.json names them
MODELS: dict[str, tuple[str, list[str], list[str], tuple[str, str]]] = {
    "qwen": (QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>", "<tool_call>"], ("", "<|im_end|>")),
    "llama": (LLAMA, ["<|begin|>", "<|start|>", "<|end|>", "<|eot|>", "<|eom|>"], [], ("<|begin|>", "<|eot|>")),
    "smol": (SMOL, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], [], ("<|im_start|>", "<|im_end|>")),
    "gemma": (GEMMA, ["<bos>", "<eos>"], ["<start_of_turn>", "<end_of_turn>"], ("<bos>", "<eos>")),
    "zephyr": (ZEPHYR, ["<s>", "</s>"], [], ("<s>", "</s>")),
    "eager": (EAGER, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"], ("", "<|im_end|>")),
}


def write_model(folder: Path, name: str, extra: Sequence[str] = ()) -> Path:
    """The folder of a small chat model: tokenizer and template, no weights. `smol` has its template in the tokenizer's config.

    `extra`: further special tokens.
    """
    template, special, plain, (bos, eos) = MODELS[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=420, special_tokens=[*special, *extra], initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {"eos_token": {"__type": "AddedToken", "content": eos}}
    if bos:
        config["bos_token"] = bos
    if name == "smol":
        config["chat_template"] = [{"name": "default", "template": template}]
    else:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if name == "llama":
        ends = [tokenizer.token_to_id(token) for token in ("<|eom|>", "<|eot|>")]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), encoding="utf-8")
    return folder
