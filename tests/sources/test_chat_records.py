"""Chats: OpenAI messages and LLaVA conversations."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from shard_corpus import JPEG, PNG, Corpus, outline, reason

from zephon_vl.sources import Source

B64, B64_PNG = base64.b64encode(JPEG).decode(), base64.b64encode(PNG).decode()


def chat(corpus: Corpus, record: Any, **options: Any) -> Source:
    corpus.jsonl("a.jsonl", [record])
    return corpus.open("a.jsonl", "chat", **options)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def test_messages(corpus: Corpus) -> None:
    record = {
        "messages": [
            {"role": "system", "content": "be kind"},
            user("hello <image>"),  # a text like any other: the record has no images
            assistant("hi"),
        ]
    }
    assert outline(chat(corpus, record)) == [
        ("system", False, ["be kind"]),
        ("user", False, ["hello <image>"]),
        ("assistant", True, ["hi"]),
    ]
    corpus.parquet("a.parquet", [record])
    assert outline(corpus.open("a.parquet", "chat")) == outline(corpus.open("a.jsonl", "chat"))
    corpus.tar("a.tar", [("1.json", json.dumps(record).encode())])
    assert outline(corpus.open("a.tar", "chat")) == outline(corpus.open("a.jsonl", "chat"))


def test_content_parts(corpus: Corpus) -> None:
    corpus.write("pic.png", PNG)
    content = [
        {"type": "text", "text": "see"},
        {"type": "image", "image": "pic.png"},
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{B64}"}},
        {"type": "image_url", "image_url": "pic.png"},
        {"type": "text", "text": "and say"},
    ]
    source = chat(corpus, {"messages": [user(content), assistant([{"type": "text", "text": "ok"}])]})
    assert outline(source) == [("user", False, ["see", PNG, JPEG, PNG, "and say"]), ("assistant", True, ["ok"])]
    assert [image.name for image in source.sample(0).images()] == [
        "pic.png",
        "messages[0].content[2].image_url",
        "pic.png",
    ]


def test_image_parts_that_refer_to_the_images_of_the_record(corpus: Corpus) -> None:
    content = [{"type": "image", "text": None}, {"type": "text", "text": "versus"}, {"type": "image", "text": None}]
    record = {
        "messages": [user(content), assistant([{"type": "text", "text": "both"}])],
        "images": [{"bytes": JPEG, "path": None}, {"bytes": PNG, "path": None}],
    }
    corpus.parquet("a.parquet", [record])
    source = corpus.open("a.parquet", "chat")
    assert outline(source) == [("user", False, [JPEG, "versus", PNG]), ("assistant", True, ["both"])]
    assert list(source.sample(0).record) == ["messages"]


def test_further_keys_and_tools(corpus: Corpus) -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": {}}}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    turns = [user("go"), {**assistant(None), "tool_calls": calls, "name": None}]
    for given in (tools, json.dumps(tools)):
        sample = chat(corpus, {"messages": turns, "tools": given}).sample(0)
        assert sample.tools == tools
        assert sample.messages[1].extra == {"tool_calls": calls} and sample.messages[1].parts == []


def test_conversations(corpus: Corpus) -> None:
    record = {
        "conversations": [
            {"from": "system", "value": "be kind"},
            {"from": "human", "value": "<image>\nwhat is it? <image>"},
            {"from": "gpt", "value": "a cat"},
        ],
        "image": [B64, B64_PNG],
    }
    assert outline(chat(corpus, record)) == [
        ("system", False, ["be kind"]),
        ("user", False, [JPEG, "\nwhat is it? ", PNG]),
        ("assistant", True, ["a cat"]),
    ]


@pytest.mark.parametrize("field", ["image", "images"])
def test_images_without_placeholders_go_first(corpus: Corpus, field: str) -> None:
    turns = [{"from": "gpt", "value": "hello"}, {"from": "human", "value": "what?"}, {"from": "gpt", "value": "a cat"}]
    assert outline(chat(corpus, {"conversations": turns, field: B64}))[1] == ("user", False, [JPEG, "what?"])
    messages = [user("what?"), assistant("a cat")]
    assert outline(chat(corpus, {"messages": messages, field: [B64, B64_PNG]}))[0][2] == [JPEG, PNG, "what?"]


def test_chats_with_images_in_a_tar(corpus: Corpus) -> None:
    turns = [{"from": "human", "value": "what is <image>?"}, {"from": "gpt", "value": "a cat"}]
    members = [
        ("1.jpg", JPEG),
        ("1.json", json.dumps({"conversations": turns}).encode()),
        ("2.json", json.dumps({"conversations": turns, "images": ["pics/x.png"]}).encode()),
        ("pics/x.png", PNG),
    ]
    corpus.tar("a.tar", members)
    source = corpus.open("a.tar", "chat")
    assert [outline(source, i)[0][2] for i in range(2)] == [["what is ", JPEG, "?"], ["what is ", PNG, "?"]]


def test_fields_say_where_the_chat_is(corpus: Corpus) -> None:
    record = {"dialog": [user("a"), assistant("b")], "pics": [B64]}
    source = chat(corpus, record, fields={"messages": "dialog", "images": "pics"})
    assert outline(source) == [("user", False, [JPEG, "a"]), ("assistant", True, ["b"])]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"text": "x"}, "neither field 'messages' nor field 'conversations' is there; the record has text"),
        ({"messages": "x"}, "field 'messages' is a string, but must be a list"),
        ({"messages": []}, "has no assistant turn with text"),
        ({"messages": [user("a")]}, "has no assistant turn with text"),
        ({"messages": [user("a"), assistant(" ")]}, "has no assistant turn with text"),
        ({"messages": ["a"]}, "messages[0] is a string, but must be an object"),
        ({"messages": [{"content": "a"}]}, "messages[0].role is None"),
        ({"messages": [user(5)]}, "messages[0].content is a number"),
        ({"messages": [user([5])]}, "messages[0].content[0] is a number"),
        ({"messages": [user([{"type": "text"}])]}, "messages[0].content[0].text is null"),
        ({"messages": [user([{"type": "image_url"}])]}, "messages[0].content[0].image_url is null"),
        ({"messages": [user([{"type": "audio"}])]}, "messages[0].content[0].type is 'audio'"),
        ({"messages": [user([{"type": "video", "video": "a.mp4"}])]}, "video parts need"),
        (
            {"messages": [user([{"type": "image"}]), assistant("a")]},
            "1 image placeholders, but the record has 0 images",
        ),
        (
            {"messages": [user([{"type": "image_url", "image_url": {"url": "https://x.org/a.jpg"}}])]},
            "messages[0].content[0].image_url is the address",
        ),
        ({"messages": [assistant("a")], "image": B64}, "1 images, but messages has no user turn"),
        ({"messages": [user("a"), assistant("b")], "tools": 5}, "field 'tools' is a number"),
        ({"messages": [user("a"), assistant("b")], "tools": "{"}, "field 'tools' is not valid JSON"),
        ({"conversations": [5]}, "conversations[0] is a number"),
        (
            {"conversations": [{"from": "bot", "value": "a"}]},
            "conversations[0].from is 'bot', but must be one of human",
        ),
        ({"conversations": [{"from": ["x"], "value": "a"}]}, "conversations[0].from is ['x']"),
        ({"conversations": [{"from": "human"}]}, "conversations[0].value is null"),
        (
            {"conversations": [{"from": "human", "value": "<image><image>"}], "image": B64},
            "conversations has 2 image placeholders, but the record has 1 images",
        ),
        ({"conversations": [{"from": "human", "value": "<image>"}]}, "1 image placeholders, but the record has 0"),
    ],
)
def test_bad_chats(corpus: Corpus, record: dict[str, Any], expected: str) -> None:
    assert expected in reason(chat(corpus, record))
