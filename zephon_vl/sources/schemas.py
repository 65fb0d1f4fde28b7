"""Schemas: what the fields of a record mean. Each fills a `Sample` from a `Record` or raises `BadSample`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zephon_vl.contracts import Part, Sample, TextPart
from zephon_vl.errors import BadSample, RecipeError
from zephon_vl.sources.chat import fill_chat
from zephon_vl.sources.images import ImageFinder, kind
from zephon_vl.sources.names import FieldNames
from zephon_vl.sources.records import IMAGE_SUFFIXES, Member, Record

if TYPE_CHECKING:
    from zephon_vl.recipe import SourceConfig

Fill = Callable[[Sample, Record, FieldNames, ImageFinder], None]

_IMAGE = (*IMAGE_SUFFIXES, "image")
ROLES: dict[str, dict[str, tuple[str, ...]]] = {
    "text": {"text": ("txt", "text")},
    "caption": {"image": _IMAGE, "text": ("txt", "text", "caption")},
    "interleaved": {
        "texts": ("texts",),
        "images": ("images",),
        "text_list": ("text_list",),
        "image_info": ("image_info",),
    },
    "chat": {
        "messages": ("messages",),
        "conversations": ("conversations",),
        "images": ("images", *_IMAGE),
        "tools": ("tools",),
    },
}
"""Schema -> part -> names of the fields that it is looked for in; the first that is there and not null is taken."""


class Schema:
    """The schema of one source."""

    def __init__(self, source: SourceConfig) -> None:
        """Raises `RecipeError` for a key of `fields` that the schema does not know."""
        roles = ROLES[source.schema]
        for role in source.fields:
            if role not in roles:
                raise RecipeError(
                    f"sources {source.name!r}: fields.{role} is set, but schema {source.schema!r} knows only "
                    f"{', '.join(roles)}"
                )
        self.names = FieldNames({role: _override(source.fields, role, names) for role, names in roles.items()})
        self._fill = _FILL[source.schema]
        self._images = [name for role in ("image", "images") for name in self.names.candidates.get(role, ())]

    def sample(self, record: Record, shard: str, images: ImageFinder) -> Sample:
        """Raises `BadSample`."""
        small = {name: value for name, value in record.fields.items() if type(value) not in _BINARY}
        for name in self._images:
            if name in small and not (isinstance(small[name], str) and len(small[name]) <= _LONGEST_PATH):
                del small[name]
        sample = Sample(record.key, shard, record=small)
        self._fill(sample, record, self.names, images)
        return sample


_BINARY = (bytes, Member)
_LONGEST_PATH = 4096


def fill_text(sample: Sample, record: Record, names: FieldNames, images: ImageFinder) -> None:
    """A plain text."""
    name, text = names.text(record, "text")
    if not text or text.isspace():
        raise BadSample(f"field {name!r} is empty")
    sample.parts = [TextPart(text)]


def fill_caption(sample: Sample, record: Record, names: FieldNames, images: ImageFinder) -> None:
    """An image, then its text."""
    at, image = names.find(record, "image")
    fill_text(sample, record, names, images)
    sample.parts.insert(0, images.part(record, image, at))


def fill_interleaved(sample: Sample, record: Record, names: FieldNames, images: ImageFinder) -> None:
    """Texts and images in turn: parallel lists (OBELICS), or sentences and images matched to them (MMC4)."""
    if names.get(record, "text_list") is not None:
        sample.parts = _mmc4(record, names, images)
    elif names.get(record, "texts") is not None or names.get(record, "images") is not None:
        sample.parts = _obelics(record, names, images)
    else:
        raise BadSample(
            f"neither {names.describe('texts')} and {names.describe('images')} nor {names.describe('text_list')} and "
            f"{names.describe('image_info')} are there; {record.describe()}"
        )
    if not any(isinstance(part, TextPart) and not part.text.isspace() for part in sample.parts):
        raise BadSample("the document has no text")


def _obelics(record: Record, names: FieldNames, images: ImageFinder) -> list[Part]:
    texts_at, texts = names.list(record, "texts")
    images_at, pictures = names.list(record, "images")
    if len(texts) != len(pictures):
        raise BadSample(
            f"{texts_at} has {len(texts)} entries, but {images_at} has {len(pictures)}; they must be parallel, with "
            f"null in the gaps"
        )
    parts: list[Part] = []
    for i, (text, picture) in enumerate(zip(texts, pictures, strict=True)):
        if picture is not None:
            parts.append(images.part(record, picture, f"{images_at}[{i}]"))
        if text is None or text == "":
            continue
        if not isinstance(text, str):
            raise BadSample(f"{texts_at}[{i}] is {kind(text)}, but must be a string or null")
        parts.append(TextPart(text))
    return parts


def _mmc4(record: Record, names: FieldNames, images: ImageFinder) -> list[Part]:
    texts_at, texts = names.list(record, "text_list")
    info_at, infos = names.list(record, "image_info")
    before: dict[int, list[Part]] = {}
    for i, info in enumerate(infos):
        at = f"{info_at}[{i}]"
        if not isinstance(info, dict):
            raise BadSample(f"{at} is {kind(info)}, but must be an object")
        place, name = info.get("matched_text_index"), info.get("image_name")
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < len(texts):
            raise BadSample(f"{at}.matched_text_index is {place!r}, but must be from 0 to {len(texts) - 1}")
        before.setdefault(place, []).append(images.part(record, name, f"{at}.image_name"))
    parts: list[Part] = []
    run: list[str] = []
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadSample(f"{texts_at}[{i}] is {kind(text)}, but must be a string")
        if i in before:
            _end_run(parts, run)
            parts += before[i]
        run.append(text)
    _end_run(parts, run)
    return parts


def _end_run(parts: list[Part], run: list[str]) -> None:
    """Sentences without an image between them are one text again."""
    text = " ".join(sentence for sentence in run if sentence)
    if text:
        parts.append(TextPart(text))
    run.clear()


def _override(fields: Mapping[str, str], role: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return (fields[role],) if role in fields else names


_FILL: dict[str, Fill] = {
    "text": fill_text,
    "caption": fill_caption,
    "interleaved": fill_interleaved,
    "chat": fill_chat,
}
