"""Tokenize: ids as the tokenizer's own, images in place, and no control token out of a text."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import BOS, EOS, NOT_SPECIAL, SPECIAL, build_tiny_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from zephon_vl.contracts import Context, ImagePart, Part, Sample, TextPart, Vocabulary
from zephon_vl.errors import BadSample, RecipeError
from zephon_vl.operators.tokenize import Tokenize, text_encoder
from zephon_vl.recipe import Recipe, SourceConfig, TokenizerConfig, VisionConfig
from zephon_vl.vocabulary import load_vocabulary

SOURCE = SourceConfig(name="web", path="*.jsonl", schema="interleaved")
CONTEXT: Context = None  # type: ignore[assignment]  # tokenizing needs none


def recipe_of(tokenizer: Path, **config: bool) -> Recipe:
    return Recipe(
        lanes=1,
        global_batch_size=1,
        seq_len=512,
        tokenizer=TokenizerConfig(path=str(tokenizer), **config),
        sources=(SOURCE,),
        vision=VisionConfig(preset="qwen2_vl"),
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def vocabulary(directory: Path) -> Vocabulary:
    return load_vocabulary(recipe_of(directory))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def tokenize(vocabulary: Vocabulary, recipe: Recipe, parts: list[Part]) -> Sample:
    return Tokenize(recipe, SOURCE, vocabulary).measure(Sample("key", "shard", parts=parts), CONTEXT)


def tokens_of(sample: Sample) -> list[int]:
    assert sample.tokens is not None and sample.tokens.dtype == np.int32
    return sample.tokens.tolist()


def test_parts_in_order(directory: Path, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    parts: list[Part] = [
        TextPart("three "),
        TextPart("boats"),
        ImagePart(tokens=3),
        ImagePart(tokens=1),
        TextPart("Prompt:", train=False),
    ]
    sample = tokenize(vocabulary, recipe_of(directory, add_bos=True), parts)
    v = vocabulary
    text = tokenizer.encode("three boats").ids
    image = [v.vision_start, *[v.image] * 3, v.vision_end, v.vision_start, v.image, v.vision_end]
    untrained = [*tokenizer.encode("Prompt:").ids, v.eos]
    assert tokens_of(sample) == [v.bos, *text, *[~i for i in image], *[~i for i in untrained]]
    assert sample.image_offsets == [1 + len(text) + 1, 1 + len(text) + 6]


def test_one_text_with_a_part_that_is_not_trained_on(
    directory: Path, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    parts: list[Part] = [TextPart("The ima", train=False), TextPart("ge shows three"), TextPart(" boats", train=False)]
    tokens = tokens_of(tokenize(vocabulary, recipe_of(directory, add_eos=False), parts))
    expected = tokenizer.encode("The image shows three boats")
    assert [max(i, ~i) for i in tokens] == expected.ids
    assert [t for t, i in zip(expected.tokens, tokens, strict=True) if i >= 0] == ["Ġimage", "Ġshows", "Ġthree"]


@pytest.mark.parametrize("template", [f"{BOS} $A {EOS}", "$A"])
def test_bos_as_the_tokenizer_does(tmp_path: Path, template: str) -> None:
    directory = build_tiny_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = [(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=ids)
    tokenizer.save(str(directory / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(str(directory))("boats")["input_ids"]
    recipe = recipe_of(directory, add_eos=BOS in template)
    assert tokens_of(tokenize(load_vocabulary(recipe), recipe, [TextPart("boats")])) == theirs


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "empty"),
        ([TextPart(""), TextPart("")], "empty"),
        ([TextPart("caf\ud800e")], "lone surrogate at character 3"),
        ([TextPart("caf", train=False), TextPart("\udfff")], "lone surrogate at character 3"),
    ],
)
def test_bad_samples(directory: Path, vocabulary: Vocabulary, parts: list[Part], reason: str) -> None:
    with pytest.raises(BadSample, match=reason):
        tokenize(vocabulary, recipe_of(directory, add_bos=True), parts)


def test_image_without_vision_is_a_bad_sample(directory: Path) -> None:
    recipe = Recipe(
        lanes=1, global_batch_size=1, seq_len=8, tokenizer=TokenizerConfig(path=str(directory)), sources=(SOURCE,)
    )
    with pytest.raises(BadSample, match=r"no \[vision\] table"):
        tokenize(load_vocabulary(recipe), recipe, [ImagePart(tokens=4)])


def test_eos_that_does_not_exist(tmp_path: Path) -> None:
    directory = build_tiny_tokenizer(tmp_path)
    (directory / "tokenizer_config.json").unlink()
    recipe = recipe_of(directory)
    vocabulary = load_vocabulary(recipe)
    with pytest.raises(RecipeError, match=r"add_eos = false"):
        Tokenize(recipe, SOURCE, vocabulary)
    Tokenize(recipe_of(directory, add_eos=False), SOURCE, vocabulary)


_WORDS = st.one_of(
    st.text(max_size=12), st.sampled_from(["The image", " shows", "\n\n", "你好", "e\u0301", "<|", "|>"])
)
_LITERALS = st.sampled_from([*SPECIAL, *NOT_SPECIAL, "<|im_", "pad|>"])
_PARTS = st.lists(
    st.one_of(
        st.builds(TextPart, st.lists(st.one_of(_WORDS, _LITERALS), max_size=5).map("".join), st.booleans()),
        st.builds(ImagePart, tokens=st.integers(1, 5)),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(_PARTS)
def test_no_control_token_out_of_a_text(
    directory: Path, vocabulary: Vocabulary, tokenizer: Tokenizer, parts: list[Part]
) -> None:
    operator = Tokenize(recipe_of(directory), SOURCE, vocabulary)
    if not any(isinstance(part, ImagePart) or part.text for part in parts):
        with pytest.raises(BadSample, match="empty"):
            operator.measure(Sample("key", "shard", parts=parts), CONTEXT)
        return
    sample = operator.measure(Sample("key", "shard", parts=parts), CONTEXT)
    ids = np.array([max(i, ~i) for i in tokens_of(sample)])
    images = sample.images()
    for offset, image in zip(sample.image_offsets, images, strict=True):
        run = ids[offset - 1 : offset + image.tokens + 1]
        assert run.tolist() == [vocabulary.vision_start, *[vocabulary.image] * image.tokens, vocabulary.vision_end]
    control = [vocabulary.special_texts[text] for text in SPECIAL]
    assert np.isin(ids, control).sum() == 1 + sum(image.tokens + 2 for image in images)
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    decoded = tokenizer.decode([i for i in ids if i not in control])
    assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", text)


@settings(deadline=None)
@given(st.lists(st.one_of(_WORDS, st.sampled_from(NOT_SPECIAL)), min_size=1).map("".join).filter(bool))
def test_text_alone_is_what_the_tokenizer_makes(
    directory: Path, vocabulary: Vocabulary, tokenizer: Tokenizer, text: str
) -> None:
    assert text_encoder(vocabulary).encode(text) == tokenizer.encode(text).ids


def test_vision_token_that_is_not_marked_special(tmp_path: Path) -> None:
    directory = build_tiny_tokenizer(tmp_path)
    file = directory / "tokenizer.json"
    table = json.loads(file.read_text(encoding="utf-8"))
    for token in table["added_tokens"]:
        token["special"] = False
    file.write_text(json.dumps(table), encoding="utf-8")
    recipe = recipe_of(directory)
    vocabulary = load_vocabulary(recipe)
    ids = text_encoder(vocabulary).encode("<|image_pad|><think>")
    assert vocabulary.image not in ids and vocabulary.special_texts["<think>"] in ids


def test_model_whose_plain_vocabulary_holds_its_control_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *((c, -9.0) for c in "</s>ab")], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = text_encoder(
        Vocabulary(tokenizer_json=str(tmp_path / "tokenizer.json"), fingerprint="unigram", size=8, eos=1)
    )
    ids, spans = encoder.encode_with_spans("a</s>b </s>")
    assert 1 not in ids and ids == encoder.encode("a</s>b </s>")
    assert [tokenizer.id_to_token(i) for i in ids] == ["a", "<", "/", "s", ">", "b", "<", "/", "s", ">"]
    assert "".join("a</s>b </s>"[a:b] for a, b in spans) == "a</s>b</s>"
