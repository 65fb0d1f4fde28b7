"""Vocabulary: the forms that a tokenizer has on disk, the ids of its tokens, and errors that name the remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiny_tokenizer import BOS, CHATML_WITH_VISION, EOS, PAD, build_tiny_tokenizer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen2Tokenizer

from zephon_vl.contracts import Vocabulary
from zephon_vl.errors import RecipeError
from zephon_vl.recipe import Recipe, TokenizerConfig, VisionConfig
from zephon_vl.vocabulary import load_vocabulary


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZEPHON_VL_CACHE", str(tmp_path / "cache"))
    return build_tiny_tokenizer(tmp_path / "tokenizer")


def load(path: Path | str, vision: VisionConfig | None = None, **config: Any) -> Vocabulary:
    return load_vocabulary(
        Recipe(
            lanes=1,
            global_batch_size=1,
            seq_len=64,
            tokenizer=TokenizerConfig(path=str(path), **config),
            sources=(),
            vision=vision,
        )
    )


def change(directory: Path, name: str = "tokenizer_config.json", **changes: Any) -> None:
    file = directory / name
    table = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**table, **changes}))


def test_ids_are_those_of_transformers(directory: Path) -> None:
    ours, theirs = load(directory, VisionConfig(preset="qwen2_vl")), AutoTokenizer.from_pretrained(str(directory))
    assert (ours.bos, ours.eos, ours.pad) == (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
    names = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    assert [ours.image, ours.video, ours.vision_start, ours.vision_end] == theirs.convert_tokens_to_ids(list(names))
    assert ours.size == len(theirs) and ours.special_texts == theirs.get_added_vocab()
    assert ours.chat_template == CHATML_WITH_VISION and ours.tokenizer_json == str(directory / "tokenizer.json")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ours), type=Vocabulary) == ours


def test_a_file_stands_for_its_directory(directory: Path) -> None:
    assert load(directory / "tokenizer.json") == load(directory)
    alone = (directory / "tokenizer.json").rename(directory / "alone.json")
    assert (load(alone).eos, load(alone).pad, load(alone).chat_template) == (-1, 0, None)


def test_transformers_is_not_imported_for_a_tokenizer_json(directory: Path) -> None:
    code = (
        "import sys\nfrom zephon_vl.recipe import Recipe, TokenizerConfig\n"
        "from zephon_vl.vocabulary import load_vocabulary\n"
        f"config = TokenizerConfig(path={str(directory)!r})\n"
        "load_vocabulary(Recipe(lanes=1, global_batch_size=1, seq_len=8, tokenizer=config, sources=()))\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(("pad", "expected"), [(PAD, PAD), (None, EOS)])
def test_pad_falls_back_to_eos(directory: Path, pad: str | None, expected: str) -> None:
    change(directory, pad_token=pad)
    vocabulary = load(directory)
    assert vocabulary.pad == vocabulary.special_texts[expected]


def test_tokens_may_be_objects_and_stand_in_the_special_tokens_map(directory: Path) -> None:
    change(directory, bos_token={"content": BOS, "lstrip": False}, eos_token=None)
    change(directory, "special_tokens_map.json", eos_token={"content": "<|im_end|>"})
    vocabulary = load(directory)
    assert (vocabulary.bos, vocabulary.eos) == (
        vocabulary.special_texts[BOS],
        vocabulary.special_texts["<|im_end|>"],
    )


def test_tokens_that_only_the_configuration_has(directory: Path) -> None:
    size = load(directory).size
    token = {"content": "<row>", "special": False, "normalized": False, "lstrip": False, "rstrip": False}
    change(directory, pad_token="[PAD]", added_tokens_decoder={str(size): {**token, "single_word": False}})
    ours, theirs = load(directory), AutoTokenizer.from_pretrained(str(directory))
    assert (ours.special_texts["<row>"], ours.pad, ours.size) == (size, size + 1, size + 2)
    assert (theirs.convert_tokens_to_ids("<row>"), theirs.pad_token_id) == (size, size + 1)
    written = Path(ours.tokenizer_json)
    assert written.parent == directory.parent / "cache" / "tokenizers" and list(written.parent.iterdir()) == [written]
    assert Tokenizer.from_file(str(written)).encode("<row>a").ids == theirs("<row>a")["input_ids"]


def test_other_form_that_transformers_loads(directory: Path) -> None:
    other = directory.parent / "other"
    other.mkdir()
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    (other / "vocab.json").write_text(json.dumps(model["vocab"]))
    (other / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    (other / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Qwen2Tokenizer", "eos_token": EOS, "chat_template": "{{ messages }}"})
    )
    theirs = AutoTokenizer.from_pretrained(str(other))
    assert isinstance(theirs, Qwen2Tokenizer)
    ours = load(other)
    assert (ours.eos, ours.size, ours.chat_template) == (theirs.eos_token_id, len(theirs), "{{ messages }}")
    text = "three boats<|endoftext|>"
    assert Tokenizer.from_file(ours.tokenizer_json).encode(text).ids == theirs(text)["input_ids"]
    assert load(other) == ours


def test_chat_template_by_place(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    assert load(directory).chat_template is None
    change(directory, chat_template="{{ 1 }}")
    assert load(directory).chat_template == "{{ 1 }}"
    named = [{"name": "tool_use", "template": "{{ 2 }}"}, {"name": "default", "template": "{{ 3 }}"}]
    change(directory, chat_template=named)
    assert load(directory).chat_template == "{{ 3 }}"
    (directory / "mine.jinja").write_text("{{ 4 }}")
    assert load(directory, chat_template=str(directory / "mine.jinja")).chat_template == "{{ 4 }}"
    with pytest.raises(RecipeError, match=r"tokenizer.chat_template: cannot read .*absent.jinja"):
        load(directory, chat_template=str(directory / "absent.jinja"))


def test_fingerprint_follows_what_decides_ids(directory: Path) -> None:
    seen = {load(directory).fingerprint}
    assert load(build_tiny_tokenizer(directory.parent / "again")).fingerprint in seen
    change(directory, model_max_length=5)
    assert load(directory).fingerprint in seen
    for step in range(3):
        if step == 0:
            change(directory, eos_token="<|im_end|>")
        elif step == 1:
            (directory / "chat_template.jinja").write_text("{{ messages }}")
        else:
            build_tiny_tokenizer(directory, vocabulary_size=600)
        fingerprint = load(directory).fingerprint
        assert fingerprint not in seen
        seen.add(fingerprint)


def test_vision_tokens(directory: Path) -> None:
    with pytest.raises(RecipeError, match=r"no token '<\|media_pad\|>'.*set vision.image_token.*'<\|image_pad\|>'"):
        load(directory, VisionConfig(preset="kimi_vl"))
    vocabulary = load(directory, VisionConfig(preset="kimi_vl", image_token="<|image_pad|>"))
    assert vocabulary.image == vocabulary.special_texts["<|image_pad|>"]
    assert (vocabulary.vision_start, vocabulary.vision_end) == (-1, -1)
    assert load(directory).image == -1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent", None, "does not exist"),
        ("words.json", '{"a": 1}', "no serialisation of the tokenizers library"),
        ("words.json", "[]", "no serialisation of the tokenizers library"),
        ("words.txt", "words", "is not JSON"),
        ("words.json", '{"model": {"type": "Magic"}}', "cannot be loaded by tokenizers"),
        ("model/config.json", "{}", "no tokenizer.json and transformers cannot load it.*config.json"),
        ("model/tokenizer.json", "{", "is not JSON"),
    ],
)
def test_paths_that_are_no_tokenizer(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    path = file.parent if file.parent != tmp_path else file
    with pytest.raises(RecipeError, match=f"(?s)tokenizer.path is .*{message}"):
        load(path)


def test_cache_that_cannot_be_written(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "file").write_text("")
    monkeypatch.setenv("ZEPHON_VL_CACHE", str(directory / "file"))
    change(directory, pad_token="[PAD]")
    with pytest.raises(RecipeError, match="set ZEPHON_VL_CACHE"):
        load(directory)


def test_what_was_read_is_kept_and_moves_with_the_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(directory)
    moved = directory.rename(directory.with_name("moved"))
    monkeypatch.setattr(Tokenizer, "from_file", lambda _: pytest.fail("loaded again"), raising=False)
    monkeypatch.setattr("zephon_vl.vocabulary._load", lambda *_: pytest.fail("loaded again"))
    again = load(moved)
    assert again == msgspec.structs.replace(first, tokenizer_json=str(moved / "tokenizer.json"))


@pytest.mark.parametrize("changed", ["tokenizer_config.json", "chat_template.jinja", "tokenizer.json", "vision"])
def test_what_was_read_before_a_change_is_not_used(directory: Path, changed: str) -> None:
    first = load(directory)
    vision = None
    if changed == "vision":
        vision = VisionConfig(preset="qwen2_vl")
    elif changed == "chat_template.jinja":
        (directory / changed).write_text("{{ messages }}")
    elif changed == "tokenizer_config.json":
        change(directory, pad_token=first.special_texts and sorted(first.special_texts)[0])
    else:
        file = directory / changed
        file.write_text(file.read_text() + " ")
    assert load(directory, vision).fingerprint != first.fingerprint


def test_a_damaged_record_is_read_anew(directory: Path, tmp_path: Path) -> None:
    first = load(directory)
    for record in (tmp_path / "cache" / "vocabularies").iterdir():
        record.write_bytes(record.read_bytes()[:-4])
    assert load(directory) == first
