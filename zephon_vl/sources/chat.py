"""Chats: OpenAI `messages` with content parts, and LLaVA `conversations` with `<image>` in the text."""

from __future__ import annotations

from typing import Any

from zephon_vl.contracts import ImagePart, Message, Part, Sample, TextPart
from zephon_vl.errors import BadSample
from zephon_vl.sources.images import ImageFinder, kind
from zephon_vl.sources.names import FieldNames
from zephon_vl.sources.records import Member, Record, decode_json

PLACEHOLDER = "<image>"
_LLAVA_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
_OPEN = ImagePart(name=PLACEHOLDER)
"""Stands for the next image of the record until `_place_images` puts it there."""


def fill_chat(sample: Sample, record: Record, names: FieldNames, images: ImageFinder) -> None:
    """Turns with their images in place; only assistant turns are trained on."""
    pictures = _pictures(record, names, images)
    if names.get(record, "messages") is not None:
        at, turns = names.list(record, "messages")
        split = bool(pictures)  # without images, "<image>" is a text like any other
        messages = [_message(record, turn, f"{at}[{i}]", images, split) for i, turn in enumerate(turns)]
    elif names.get(record, "conversations") is not None:
        at, turns = names.list(record, "conversations")
        messages = [_llava_turn(turn, f"{at}[{i}]") for i, turn in enumerate(turns)]
    else:
        raise BadSample(
            f"neither {names.describe('messages')} nor {names.describe('conversations')} is there; {record.describe()}"
        )
    _place_images(messages, pictures, at)
    if not any(message.train and (_has_text(message) or "tool_calls" in message.extra) for message in messages):
        raise BadSample(f"field {at!r} has no assistant turn with text: there is nothing to train on")
    sample.messages = messages
    sample.tools = _tools(record, names)


def _message(record: Record, turn: Any, at: str, images: ImageFinder, split: bool) -> Message:
    if not isinstance(turn, dict):
        raise BadSample(f"{at} is {kind(turn)}, but must be an object with role and content")
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or not role:
        raise BadSample(f"{at}.role is {role!r}, but must be a string such as 'user'")
    parts: list[Part] = []
    if isinstance(content, str):
        parts = _split(content) if split else _text(content)
    elif isinstance(content, list):
        for i, item in enumerate(content):
            parts += _content_part(record, item, f"{at}.content[{i}]", images)
    elif content is not None:
        raise BadSample(f"{at}.content is {kind(content)}, but must be a string or a list of parts")
    # Columns of a Parquet file are there for every message, null where the message has no such key.
    extra = {name: value for name, value in turn.items() if name not in ("role", "content") and value is not None}
    return Message(role, parts, role == "assistant", extra)


def _content_part(record: Record, item: Any, at: str, images: ImageFinder) -> list[Part]:
    if isinstance(item, str):
        return _text(item)
    if not isinstance(item, dict):
        raise BadSample(f"{at} is {kind(item)}, but must be an object with a type")
    what = item.get("type")
    if what == "text":
        text = item.get("text")
        if not isinstance(text, str):
            raise BadSample(f"{at}.text is {kind(text)}, but must be a string")
        return _text(text)
    if what == "image":
        value = item.get("image")
        return [_OPEN if value is None else images.part(record, value, f"{at}.image")]
    if what == "image_url":
        value = item.get("image_url")
        value = value.get("url") if isinstance(value, dict) else value
        if not isinstance(value, str):
            raise BadSample(f"{at}.image_url is {kind(value)}, but must be a data: URL or a path")
        return [images.part(record, value, f"{at}.image_url")]
    if what in ("video", "video_url"):
        raise BadSample(
            f"{at}: video parts need a video operator, and chats load still images only; give frames as images"
        )
    raise BadSample(f"{at}.type is {what!r}, but must be 'text', 'image' or 'image_url'")


def _llava_turn(turn: Any, at: str) -> Message:
    if not isinstance(turn, dict):
        raise BadSample(f"{at} is {kind(turn)}, but must be an object with from and value")
    speaker, value = turn.get("from"), turn.get("value")
    role = _LLAVA_ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise BadSample(f"{at}.from is {speaker!r}, but must be one of {', '.join(_LLAVA_ROLES)}")
    if not isinstance(value, str):
        raise BadSample(f"{at}.value is {kind(value)}, but must be a string")
    extra = {name: item for name, item in turn.items() if name not in ("from", "value") and item is not None}
    return Message(role, _split(value), role == "assistant", extra)


def _place_images(messages: list[Message], pictures: list[ImagePart], at: str) -> None:
    places = [(m, i) for m in messages for i, part in enumerate(m.parts) if part is _OPEN]
    if not places and pictures:
        first = next((message for message in messages if message.role == "user"), None)
        if first is None:
            raise BadSample(f"the record has {len(pictures)} images, but {at} has no user turn to put them in")
        first.parts[:0] = pictures
        return
    if len(places) != len(pictures):
        raise BadSample(f"{at} has {len(places)} image placeholders, but the record has {len(pictures)} images")
    for (message, i), picture in zip(places, pictures, strict=True):
        message.parts[i] = picture


def _pictures(record: Record, names: FieldNames, images: ImageFinder) -> list[ImagePart]:
    found = names.get(record, "images")
    if found is None:
        return []
    at, value = found
    if isinstance(value, Member):  # every image member of the sample, in the order of the names
        members = (record.fields.get(name) for name in names.candidates["images"])
        return [images.part(record, member, at) for member in members if isinstance(member, Member)]
    if not isinstance(value, list):
        return [images.part(record, value, at)]
    return [images.part(record, item, f"{at}[{i}]") for i, item in enumerate(value)]


def _tools(record: Record, names: FieldNames) -> list[Any] | None:
    found = names.get(record, "tools")
    if found is None:
        return None
    at, tools = found
    if isinstance(tools, str):  # as the datasets library stores them
        tools = decode_json(tools.encode(), f"field {at!r}")
    if not isinstance(tools, list):
        raise BadSample(f"field {at!r} is {kind(tools)}, but must be a list")
    return tools


def _split(text: str) -> list[Part]:
    parts: list[Part] = []
    for i, piece in enumerate(text.split(PLACEHOLDER)):
        if i:
            parts.append(_OPEN)
        parts += _text(piece)
    return parts


def _text(text: str) -> list[Part]:
    return [TextPart(text)] if text else []


def _has_text(message: Message) -> bool:
    return any(isinstance(part, TextPart) and part.text.strip() for part in message.parts)
