"""The models of a bare machine: what their chat template renders."""

from pathlib import Path
from typing import Any

import pytest
from leyden.infra.local.models import chat_template
from transformers import AutoTokenizer

SMOLLM2_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nHELPFUL<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model_dir)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hi"}],
        [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}],
        [
            {"role": "user", "content": " spaces "},
            {"role": "assistant", "content": "calculator(1)"},
            {"role": "tool", "content": "1"},
        ],
    ],
)
@pytest.mark.parametrize("generate", [True, False])
def test_without_tools_it_renders_what_smollm2s_own_template_does(
    tokenizer: Any, messages: list[dict[str, str]], generate: bool
) -> None:
    def rendered(template: str) -> str:
        return tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=generate
        )

    assert rendered(chat_template("HELPFUL")) == rendered(SMOLLM2_TEMPLATE)


def test_tools_and_tool_messages_stand_in_the_prompt(tokenizer: Any) -> None:
    messages = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    prompt = tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    assert '<tools>\n{"type": "function", "function": {"name": "add"' in prompt
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n' in prompt
    )
    assert "<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n" in prompt


def test_a_longer_conversation_extends_the_shorter_ones_prompt(tokenizer: Any) -> None:
    first = [{"role": "user", "content": "1+1?"}]
    called = [*first, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    prompt = tokenizer.apply_chat_template(first, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    longer = tokenizer.apply_chat_template(called, tools=[TOOL], tokenize=False)
    assert longer.startswith(prompt)


def test_the_tiny_model_has_under_a_million_parameters_and_reads_back_any_text(
    tokenizer: Any, tiny_model_dir: Path
) -> None:
    from safetensors import safe_open

    with safe_open(tiny_model_dir / "model.safetensors", "np") as file:
        count = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118
    assert count < 1_000_000
    text = "héllo 😀 <|im_end|>x"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
