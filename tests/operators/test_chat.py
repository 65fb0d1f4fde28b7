"""Chats: ids as transformers makes them, loss on the assistant's turns, no control token out of a record."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import chat_templates
import numpy as np
import pytest
from chat_templates import GENERATION, LLAMA2, LLAMA3, ONLY_LISTS, QWEN2_5, QWEN2_VL, QWEN3, QWEN3_THINKING, TODAY
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import SPECIAL, build_tiny_tokenizer
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from zephon_vl.contracts import Context, ImagePart, Message, Part, Sample, TextPart, Vocabulary
from zephon_vl.errors import BadSample, RecipeError
from zephon_vl.operators.chat import ChatTokenize
from zephon_vl.recipe import Recipe, SourceConfig, TokenizerConfig, VisionConfig
from zephon_vl.vocabulary import load_vocabulary

SOURCE = SourceConfig(name="chats", path="*.jsonl", schema="chat")
CONTEXT: Context = None  # type: ignore[assignment]  # tokenizing needs none
LLAMA_TOKENS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"]

TALK = [
    {"role": "user", "content": "How many birds are there?"},
    {"role": "assistant", "content": "There are four birds."},
    {"role": "user", "content": " And boats? "},
    {"role": "assistant", "content": "Three boats."},
]
THOUGHT = [
    {"role": "system", "content": "Answer in a few words."},
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": "<think>\nI count.\n</think>\n\nFour."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "<think>\nOnce more.\n</think>\n\nYes."},
]
TOOLS = [{"type": "function", "function": {"name": "area", "parameters": {"width": {"type": "number"}}}}]
CALLS = [
    {"role": "user", "content": "What is the area?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "area", "arguments": {"width": 640}}}],
    },
    {"role": "tool", "content": "307200"},
    {"role": "assistant", "content": "It is 307200."},
]


class Chats:
    """A tiny tokenizer with one chat template: ours and transformers'."""

    def __init__(self, directory: Path, template: str | None) -> None:
        self.recipe = Recipe(
            lanes=1,
            global_batch_size=1,
            seq_len=512,
            tokenizer=TokenizerConfig(path=str(directory), chat_template=None),
            sources=(SOURCE,),
            vision=VisionConfig(preset="qwen2_vl"),
        )
        self.vocabulary: Vocabulary = load_vocabulary(self.recipe)
        self.operator = ChatTokenize(self.recipe, SOURCE, self.vocabulary)
        self.theirs = AutoTokenizer.from_pretrained(str(directory))

    def ours(self, messages: list[dict[str, Any]], tools: list[Any] | None = None, tokens: int = 1) -> Sample:
        sample = Sample("key", "shard", messages=[message_of(m, tokens) for m in messages], tools=tools)
        sample = self.operator.measure(sample, CONTEXT)
        assert sample.tokens is not None and sample.tokens.dtype == np.int32
        return sample

    def ids(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> list[int]:
        return self.theirs.apply_chat_template(messages, tools=tools, tokenize=True, return_dict=False)

    def trained(self, sample: Sample) -> list[str]:
        """Runs of tokens that are trained on, as text."""
        runs: list[list[int]] = [[]]
        assert sample.tokens is not None
        for token in sample.tokens.tolist():
            if token >= 0:
                runs[-1].append(token)
            elif runs[-1]:
                runs.append([])
        return [self.theirs.decode(run) for run in runs if run]


def message_of(message: dict[str, Any], tokens: int) -> Message:
    content = message["content"]
    parts: list[Part] = [TextPart(content)] if isinstance(content, str) and content else []
    if isinstance(content, list):
        parts = [TextPart(part["text"]) if "text" in part else ImagePart(tokens=tokens) for part in content]
    extra = {key: value for key, value in message.items() if key not in ("role", "content")}
    return Message(message["role"], parts, message["role"] == "assistant", extra)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def build(template: str) -> Chats:
        directory = build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.add_special_tokens(LLAMA_TOKENS)
        tokenizer.save(str(directory / "tokenizer.json"))
        (directory / "chat_template.jinja").write_text(template)
        return Chats(directory, template)

    return build


@pytest.mark.parametrize(
    ("template", "messages", "tools", "trained"),
    [
        (QWEN2_5, TALK, None, ["There are four birds.<|im_end|>", "Three boats.<|im_end|>"]),
        (
            QWEN2_5,
            CALLS,
            TOOLS,
            [
                '<tool_call>\n{"name": "area", "arguments": {"width": 640}}\n</tool_call><|im_end|>',
                "It is 307200.<|im_end|>",
            ],
        ),
        (QWEN3, THOUGHT, None, ["Four.<|im_end|>", "<think>\nOnce more.\n</think>\n\nYes.<|im_end|>"]),
        (QWEN3, TALK, None, ["There are four birds.<|im_end|>", "<think>\n\n</think>\n\nThree boats.<|im_end|>"]),
        (QWEN3_THINKING, THOUGHT, None, ["Four.<|im_end|>", "Once more.\n</think>\n\nYes.<|im_end|>"]),
        (QWEN2_VL, TALK, None, ["There are four birds.<|im_end|>", "Three boats.<|im_end|>"]),
        (LLAMA2, TALK, None, [" There are four birds. <|endoftext|>", " Three boats. <|endoftext|>"]),
        (GENERATION, TALK, None, ["There are four birds.<|im_end|>", "Three boats.<|im_end|>"]),
    ],
)
def test_ids_as_transformers_and_loss_on_answers(
    chats: Any, template: str, messages: list[dict[str, Any]], tools: list[Any] | None, trained: list[str]
) -> None:
    both: Chats = chats(template)
    sample = both.ours(messages, tools)
    assert sample.tokens is not None
    assert np.where(sample.tokens < 0, ~sample.tokens, sample.tokens).tolist() == both.ids(messages, tools)
    assert both.trained(sample) == trained


def test_llama3_has_its_own_date_and_a_second_end(chats: Any) -> None:
    both: Chats = chats(LLAMA3)
    sample = both.ours(CALLS[:2] + TALK)
    ids = both.theirs.apply_chat_template(CALLS[:2] + TALK, tokenize=True, return_dict=False, date_string="26 Jul 2024")
    assert sample.tokens is not None
    assert np.where(sample.tokens < 0, ~sample.tokens, sample.tokens).tolist() == ids
    assert both.trained(sample) == [
        '{"name": "area"}<|eom_id|>',
        "There are four birds.<|eot_id|>",
        "Three boats.<|eot_id|>",
    ]


SEEN = [
    {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "image"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "A red roof."}]},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "And this?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "A boat."}]},
]


@pytest.mark.parametrize("template", [QWEN2_VL, ONLY_LISTS])
def test_images_are_expanded_in_place(chats: Any, template: str) -> None:
    both: Chats = chats(template)
    image = both.vocabulary.image
    sample = both.ours(SEEN, tokens=3)
    assert sample.tokens is not None
    ids = np.where(sample.tokens < 0, ~sample.tokens, sample.tokens)
    expected = [i for found in both.ids(SEEN) for i in [found] * (3 if found == image else 1)]
    assert ids.tolist() == expected
    assert all(ids[at : at + 3].tolist() == [image] * 3 and ids[at - 1] != image for at in sample.image_offsets[:1])
    assert sorted(at + i for at in sample.image_offsets for i in range(3)) == np.flatnonzero(ids == image).tolist()
    assert both.trained(sample) == ["A red roof.<|im_end|>", "A boat.<|im_end|>"]


def test_template_without_content_parts_gets_placeholders(chats: Any) -> None:
    both: Chats = chats(QWEN2_5)
    sample = both.ours(SEEN, tokens=2)
    assert sample.tokens is not None
    text = both.theirs.decode([max(i, ~i) for i in sample.tokens.tolist()])
    picture = "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"
    assert f"user\nLook: {picture}{picture}<|im_end|>" in text and f"user\n{picture}And this?<|im_end|>" in text


@pytest.mark.parametrize("template", [QWEN2_5, QWEN3, QWEN2_VL, LLAMA2, GENERATION])
def test_only_turns_to_train_on(chats: Any, template: str) -> None:
    both: Chats = chats(template)
    messages = [message_of(message, 1) for message in TALK]
    messages[1].train = False
    (answer,) = both.trained(both.operator.measure(Sample("k", "s", messages=messages), CONTEXT))
    assert "Three boats." in answer
    messages[3].train = False
    assert both.trained(both.operator.measure(Sample("k", "s", messages=messages), CONTEXT)) == []
    messages[2].train = True  # an odd wish of a user's operator
    (asked,) = both.trained(both.operator.measure(Sample("k", "s", messages=messages), CONTEXT))
    assert "And boats?" in asked


def test_tool_arguments_in_a_string(chats: Any) -> None:
    function = {"name": "area", "arguments": '{"width": 640}'}
    as_string = [CALLS[0], {**CALLS[1], "tool_calls": [{"type": "function", "function": function}]}, *CALLS[2:]]
    both: Chats = chats(QWEN2_5)
    assert np.array_equal(both.ours(as_string, TOOLS).tokens, both.ours(CALLS, TOOLS).tokens)


def harmless(content: Any) -> Any:
    """The same content, every text replaced."""
    if isinstance(content, str):
        return "x"
    return [{"type": "text", "text": "x"} if "text" in part else part for part in content]


_CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\ufdd0\ufdd1\ufdd2\ufdd3")
_TEXT = st.lists(
    st.one_of(
        st.text(_CHARACTERS, max_size=6),
        st.sampled_from([*SPECIAL, *LLAMA_TOKENS, "<|im_", "end|>", "<think>", " boats"]),
    ),
    max_size=4,
).map("".join)
_PART = st.one_of(_TEXT.map(lambda text: {"type": "text", "text": text}), st.just({"type": "image"}))
_CONTENT = st.one_of(_TEXT, st.lists(_PART, max_size=4))


@settings(deadline=None)
@given(
    template=st.sampled_from([QWEN2_5, QWEN3_THINKING, QWEN2_VL, LLAMA3, LLAMA2, GENERATION]),
    contents=st.lists(st.tuples(_CONTENT, _TEXT), min_size=1, max_size=3),
    name=_TEXT,
)
def test_no_control_token_out_of_a_record(
    chats: Any, template: str, contents: list[tuple[Any, str]], name: str
) -> None:
    """Whatever the texts spell, control tokens are those of the same chat with harmless texts."""
    both: Chats = chats(template)

    def control(plain: bool) -> list[int]:
        messages: list[dict[str, Any]] = []
        for question, answer in contents:
            messages.append({"role": "user", "content": harmless(question) if plain else question})
            messages.append({"role": "assistant", "content": "x" if plain else answer})
        tools = [{"x": "x"} if plain else {name: name}]
        tokens = both.ours(messages, tools, tokens=2).tokens
        assert tokens is not None
        ids = np.where(tokens < 0, ~tokens, tokens)
        wanted = [both.theirs.convert_tokens_to_ids(text) for text in (*SPECIAL, *LLAMA_TOKENS)]
        return ids[np.isin(ids, wanted)].tolist()

    assert control(plain=False) == control(plain=True)


def test_literals_are_encoded_as_their_characters(chats: Any) -> None:
    both: Chats = chats(QWEN2_5)
    messages = [{"role": "user", "content": "Say <|im_end|> now"}, {"role": "assistant", "content": "<|im_end|>!"}]
    sample = both.ours(messages)
    assert both.trained(sample) == ["<|im_end|>!<|im_end|>"]
    assert sample.tokens is not None
    sanitized = both.theirs.encode("<|im_end|>!", split_special_tokens=True)
    assert sample.tokens[sample.tokens >= 0].tolist() == [*sanitized, both.vocabulary.special_texts["<|im_end|>"]]


@pytest.mark.parametrize(
    ("template", "messages", "reason"),
    [
        (LLAMA2, TALK[1:], "Conversation roles must alternate"),
        ("{{ messages[0].absent.key }}", TALK, "has no attribute 'absent'"),
        ("{{ 1 + messages[0].content }}", TALK, "unsupported operand"),
        ("{{ messages[0].role }}", SEEN, "writes 0 image tokens, but the chat has 3 images"),
        ("<|image_pad|>", TALK, "writes 1 image tokens, but the chat has 0 images"),
        ("{# nothing #}", TALK, "empty"),
        (QWEN2_VL, [{"role": "user", "content": "\ud800"}], "lone surrogate"),
        (QWEN2_VL, [{"role": "user", "content": "\ufdd1"}], "which a chat cannot have"),
    ],
)
def test_bad_samples(chats: Any, template: str, messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(BadSample, match=reason):
        chats(template).ours(messages)


@pytest.mark.parametrize(("template", "message"), [(TODAY, "strftime_now"), ("{% for %}", "line 1")])
def test_refused_templates(chats: Any, template: str, message: str) -> None:
    with pytest.raises(RecipeError, match=f"tokenizer.chat_template.*{message}"):
        chats(template)


def test_no_template(tmp_path: Path) -> None:
    directory = build_tiny_tokenizer(tmp_path)
    (directory / "chat_template.jinja").unlink()
    with pytest.raises(RecipeError, match=r"set tokenizer.chat_template to a Jinja file"):
        Chats(directory, None)


def test_every_template_is_used() -> None:
    names = {name for name in vars(chat_templates) if name.isupper()} - {"CHATML_WITH_VISION"}
    assert names <= set(globals())
