"""Each schema in each format, and what becomes of records that do not fit."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from shard_corpus import JPEG, PNG, Corpus, outline, reason

from zephon_vl.contracts import File, ImagePart, Span, TextPart
from zephon_vl.sources import Source

B64 = base64.b64encode(JPEG).decode()
DATA_URL = f"data:image/jpeg;base64,{B64}"


def lines(corpus: Corpus, schema: str, *records: Any, **options: Any) -> Source:
    corpus.jsonl("a.jsonl", records)
    return corpus.open("a.jsonl", schema, **options)


def rows(corpus: Corpus, schema: str, *records: dict[str, Any], **options: Any) -> Source:
    corpus.parquet("a.parquet", list(records))
    return corpus.open("a.parquet", schema, **options)


def tar(corpus: Corpus, schema: str, *members: tuple[str, bytes], **options: Any) -> Source:
    corpus.tar("a.tar", members)
    return corpus.open("a.tar", schema, **options)


# --- text ----------------------------------------------------------------------------------------------------------


def test_text(corpus: Corpus) -> None:
    assert outline(lines(corpus, "text", {"text": "täxt\n"})) == ["täxt\n"]
    assert outline(rows(corpus, "text", {"text": "täxt\n"})) == ["täxt\n"]
    members = [("1.txt", "täxt\n".encode()), ("2.json", b'{"text": "from json", "n": 1}'), ("3.md", b"-")]
    source = tar(corpus, "text", *members)
    assert [outline(source, i) for i in range(2)] == [["täxt\n"], ["from json"]]
    assert source.sample(1).record == {"text": "from json", "n": 1}
    assert reason(source, 2) == "field 'txt' or 'text' is missing; the record has md"


def test_fields_say_where_the_text_is(corpus: Corpus) -> None:
    assert outline(lines(corpus, "text", {"text": "no", "body": "yes"}, fields={"text": "body"})) == ["yes"]
    assert outline(rows(corpus, "text", {"text": "no", "body": "yes"}, fields={"text": "body"})) == ["yes"]
    source = tar(corpus, "text", ("1.txt", b"no"), ("1.en.TXT", b"yes"), fields={"text": "en.txt"})
    assert outline(source) == ["yes"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, "field 'txt' or 'text' is missing; the record is empty"),
        ({"txet": "x", "n": 1}, "is missing; the record has txet, n"),
        ({"text": None}, "is missing"),
        ({"text": 7}, "field 'text' is a number, but must be a string"),
        ({"text": ["a"]}, "field 'text' is a list, but must be a string"),
        ({"text": ""}, "field 'text' is empty"),
        ({"text": " \n"}, "field 'text' is empty"),
    ],
)
def test_bad_texts(corpus: Corpus, record: dict[str, Any], expected: str) -> None:
    assert expected in reason(lines(corpus, "text", record))


def test_bad_members(corpus: Corpus) -> None:
    source = tar(corpus, "text", ("1.txt", b"ab\xff"), ("2.json", b"{"), ("3.json", b"[1]"), ("4.txt", b""))
    assert reason(source, 0) == "member 'txt' is not UTF-8: byte 2 is 0xff"
    assert "member 'json' is not valid JSON" in reason(source, 1)
    assert "is missing; the record has json" in reason(source, 2)
    assert "is empty" in reason(source, 3)


# --- caption -------------------------------------------------------------------------------------------------------


def test_captions_in_a_tar(corpus: Corpus) -> None:
    source = tar(
        corpus,
        "caption",
        ("1.txt", b"from txt"),
        ("1.png", PNG),
        ("1.jpg", JPEG),  # preferred, wherever it stands
        ("1.json", b'{"caption": "from json", "image": "original/path.jpg", "score": 0.5}'),
        ("2.json", b'{"caption": "from json"}'),
        ("2.webp", PNG),
    )
    assert [outline(source, i) for i in range(2)] == [[JPEG, "from txt"], [PNG, "from json"]]
    sample = source.sample(0)
    expected = {"caption": "from json", "image": "original/path.jpg", "score": 0.5, "txt": "from txt"}
    assert sample.record == expected
    image = sample.images()[0]
    assert isinstance(image.where, Span) and image.where.size == len(JPEG)
    assert source.image_bytes(image.where, 5) == JPEG[:5]


def test_an_image_of_another_suffix_needs_to_be_named(corpus: Corpus) -> None:
    members = [("1.seg.png", PNG), ("1.txt", b"x")]
    assert "is missing; the record has seg.png, txt" in reason(tar(corpus, "caption", *members))
    assert outline(tar(corpus, "caption", *members, fields={"image": "seg.png"})) == [PNG, "x"]


def test_captions_whose_json_names_a_member(corpus: Corpus) -> None:
    members = [("d/1.json", b'{"caption": "x", "image": "pics.JPG"}'), ("d/pics.JPG", JPEG), ("e/2.json", b"{}")]
    assert outline(tar(corpus, "caption", *members)) == [JPEG, "x"]


@pytest.mark.parametrize("image", [B64, DATA_URL, {"bytes": B64, "path": "a.jpg"}, "pic.jpg", {"path": "pic.jpg"}])
def test_captions_in_json_lines(corpus: Corpus, image: Any) -> None:
    corpus.write("pic.jpg", JPEG)
    assert outline(lines(corpus, "caption", {"image": image, "text": "x"})) == [JPEG, "x"]


@pytest.mark.parametrize(
    "image", [JPEG, {"bytes": JPEG, "path": "a.jpg"}, {"bytes": None, "path": "pic.jpg"}, "pic.jpg"]
)
def test_captions_in_parquet(corpus: Corpus, image: Any) -> None:
    corpus.write("pic.jpg", JPEG)
    source = rows(corpus, "caption", {"image": image, "caption": "x"})
    assert outline(source) == [JPEG, "x"]
    assert source.sample(0).record == {"caption": "x", **({"image": image} if image == "pic.jpg" else {})}


def test_paths_start_from_the_shard_or_the_image_root(corpus: Corpus) -> None:
    corpus.write("deep/er/pic.jpg", JPEG)
    corpus.write("images/pic.jpg", PNG)
    for shard in ("deep/er/a.jsonl", "deep/b.jsonl"):
        corpus.jsonl(shard, [{"image": "pic.jpg" if "er" in shard[5:7] else "er/pic.jpg", "text": "x"}])
    beside = corpus.open("deep/**/*.jsonl", "caption")
    assert [outline(beside, i) for i in range(2)] == [[JPEG, "x"], [JPEG, "x"]]
    assert [beside.sample(i).images()[0].where for i in range(2)] == [File("er/pic.jpg")] * 2
    rooted = corpus.open("deep/er/*.jsonl", "caption", image_root="images")
    assert outline(rooted) == [PNG, "x"]
    corpus.tar("t.tar", [("1.json", b'{"image": "pic.jpg", "text": "x"}')])
    assert outline(corpus.open("t.tar", "caption", image_root="images")) == [PNG, "x"]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (None, "'image' is missing"),
        (7, "image is a number, but must be image bytes"),
        ({}, "image has neither bytes nor a path, only nothing"),
        ({"url": "x"}, "neither bytes nor a path, only url"),
        ({"bytes": 5}, "image.bytes is a number"),
        ({"bytes": "!!"}, "image.bytes is not valid base64"),
        ("../secret.jpg", "leaves the image root"),
        ("a/../../secret.jpg", "leaves the image root"),
        ("/etc/passwd", "absolute path '/etc/passwd'"),
        ("https://example.org/a.jpg", "is the address"),
        ("file:///etc/passwd", "is the address"),
        ("", "neither base64 of an image nor a path"),
        ("a\0b", "neither base64 of an image nor a path"),
        ("x" * 5000, "neither base64 of an image nor a path"),
        ("data:image/png,abc", "data: URL without base64"),
        ("data:image/png;base64,***", "is not valid base64"),
    ],
)
def test_bad_images(corpus: Corpus, image: Any, expected: str) -> None:
    found = reason(lines(corpus, "caption", {"image": image, "text": "x"}))
    assert expected in found and len(found) < 300


def test_a_hash_is_a_path_and_not_base64(corpus: Corpus) -> None:
    name = "0123456789abcdef" * 4
    corpus.write(name, JPEG)
    assert outline(lines(corpus, "caption", {"image": name, "text": "x"})) == [JPEG, "x"]


def test_a_member_that_is_not_in_the_tar(corpus: Corpus) -> None:
    found = reason(tar(corpus, "caption", ("1.json", b'{"image": "2.jpg", "text": "x"}')))
    assert found == "image names '2.jpg', but the tar has no such member, and the source no image_root"


# --- interleaved ---------------------------------------------------------------------------------------------------

OBELICS = {"texts": ["one", None, "two", None, ""], "images": [None, "1.jpg", None, "2.png", None]}
MMC4 = {
    "text_list": ["zero", "one", "two", "three"],
    "image_info": [
        {"image_name": "1.jpg", "matched_text_index": 2},
        {"image_name": "2.png", "matched_text_index": 0},
        {"image_name": "2.png", "matched_text_index": 2},
    ],
}
OBELICS_PARTS = ["one", JPEG, "two", PNG]
MMC4_PARTS = [PNG, "zero one", JPEG, PNG, "two three"]


@pytest.mark.parametrize(("record", "expected"), [(OBELICS, OBELICS_PARTS), (MMC4, MMC4_PARTS)])
def test_interleaved(corpus: Corpus, record: dict[str, Any], expected: list[Any]) -> None:
    corpus.write("1.jpg", JPEG)
    corpus.write("2.png", PNG)
    assert outline(lines(corpus, "interleaved", record)) == expected
    assert outline(rows(corpus, "interleaved", record)) == expected
    members = [("doc.json", json.dumps(record).encode()), ("1.jpg", JPEG), ("2.png", PNG)]
    source = tar(corpus, "interleaved", *members)
    assert outline(source) == expected
    assert all(isinstance(image.where, Span) for image in source.sample(0).images())


def test_interleaved_bytes_in_parquet(corpus: Corpus) -> None:
    images = [None, {"bytes": JPEG, "path": "a.jpg"}, None, {"bytes": PNG, "path": None}, None]
    source = rows(corpus, "interleaved", {**OBELICS, "images": images})
    assert outline(source) == OBELICS_PARTS
    assert source.sample(0).images()[0].name == "a.jpg" and list(source.sample(0).record) == ["texts"]


def test_text_and_image_at_one_place(corpus: Corpus) -> None:
    assert outline(lines(corpus, "interleaved", {"texts": ["a", "b"], "images": [None, B64]})) == ["a", JPEG, "b"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"text": "x"}, "neither field 'texts' and field 'images' nor field 'text_list'"),
        ({"texts": ["a"]}, "field 'images' is missing"),
        ({"texts": "a", "images": []}, "field 'texts' is a string, but must be a list"),
        ({"texts": ["a"], "images": []}, "texts has 1 entries, but images has 0"),
        ({"texts": [1], "images": [None]}, "texts[0] is a number"),
        ({"texts": [], "images": []}, "the document has no text"),
        ({"texts": [None], "images": [B64]}, "the document has no text"),
        ({"texts": ["a", None], "images": [None, 5]}, "images[1] is a number"),
        ({"text_list": ["a"]}, "field 'image_info' is missing"),
        ({"text_list": ["a"], "image_info": ["x"]}, "image_info[0] is a string"),
        (
            {"text_list": ["a"], "image_info": [{"image_name": B64}]},
            "matched_text_index is None, but must be from 0 to 0",
        ),
        ({"text_list": ["a"], "image_info": [{"image_name": B64, "matched_text_index": 1}]}, "index is 1, but"),
        ({"text_list": ["a"], "image_info": [{"matched_text_index": 0}]}, "image_info[0].image_name is null"),
        ({"text_list": [None], "image_info": []}, "text_list[0] is null, but must be a string"),
    ],
)
def test_bad_interleaved(corpus: Corpus, record: dict[str, Any], expected: str) -> None:
    assert expected in reason(lines(corpus, "interleaved", record))


def test_parts_are_of_the_contract(corpus: Corpus) -> None:
    sample = lines(corpus, "caption", {"image": B64, "text": "x", "n": 1}).sample(0)
    image, text = sample.parts
    assert isinstance(image, ImagePart) and (image.where, image.data, image.name) == (None, JPEG, "image")
    assert isinstance(text, TextPart) and text.train and sample.messages == []
    assert (sample.shard, sample.record["n"]) == ("a.jsonl", 1)
