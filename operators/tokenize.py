"""Tokenize: the text and images of a plain document become token ids."""

from __future__ import annotations

import functools
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from zephon_vl.allocator import return_freed_memory
from zephon_vl.contracts import Context, Operator, Sample, TextPart, Vocabulary
from zephon_vl.errors import BadSample, RecipeError
from zephon_vl.vocabulary import adds_bos

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import AddedToken, Tokenizer

    from zephon_vl.recipe import Recipe, SourceConfig

    Spans = list[tuple[int, int]]


class Tokenize(Operator):
    """Sets `sample.tokens` and `sample.image_offsets` of a plain document: [bos], its parts in order, [eos].

    An image is its start token, `part.tokens` image tokens and its end token (the delimiters only where the vocabulary
    has them), none of which is trained on. Adjacent texts are encoded as one; a token that reaches into a part to be
    trained on is trained on. eos is, unless the document ends in text that is not. A control token never comes out of
    a text, even if the text spells it; see `TextEncoder`.

    Raises:
        RecipeError: from the constructor, if a token that the recipe asks for does not exist.
    """

    text_only = True

    def __init__(self, recipe: Recipe, source: SourceConfig, vocabulary: Vocabulary) -> None:
        config = recipe.tokenizer
        self._encoder = text_encoder(vocabulary)
        add_bos = self._encoder.adds_bos if config.add_bos is None else config.add_bos
        self._bos = _required("bos", vocabulary.bos, config.path) if add_bos else None
        self._eos = _required("eos", vocabulary.eos, config.path) if config.add_eos else None
        self._image = image_writer(vocabulary)

    def measure(self, sample: Sample, context: Context) -> Sample:
        """Raises `BadSample` for a document with nothing in it and for text that is not valid Unicode."""
        pieces: list[NDArray[np.int32]] = []
        sample.image_offsets = []
        at = 0 if self._bos is None else 1
        texts: list[TextPart] = []
        for part in [*sample.parts, None]:
            if isinstance(part, TextPart):
                texts.append(part)
                continue
            if texts:
                pieces.append(self._text(texts))
                at += len(pieces[-1])
                texts = []
            if part is not None:
                found, offset = self._image(part.tokens)
                sample.image_offsets.append(at + offset)
                pieces.append(found)
                at += len(found)
        if at == (self._bos is not None):
            raise BadSample("the document is empty: it has neither text nor an image")
        if self._bos is not None:
            pieces.insert(0, np.array([self._bos], np.int32))
        if self._eos is not None:
            last = sample.parts[-1]
            context_only = isinstance(last, TextPart) and not last.train
            pieces.append(np.array([~self._eos if context_only else self._eos], np.int32))
        sample.tokens = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        return sample

    def _text(self, parts: Sequence[TextPart]) -> NDArray[np.int32]:
        """One run of texts."""
        if all(part.train == parts[0].train for part in parts):
            text = parts[0].text if len(parts) == 1 else "".join(part.text for part in parts)
            ids = np.array(self._encoder.encode(text), np.int32)
            return ids if parts[0].train else ~ids
        ids, spans = self._encoder.encode_with_spans("".join(part.text for part in parts))
        trained: Spans = []
        at = 0
        for part in parts:
            if part.train:
                trained.append((at, at + len(part.text)))
            at += len(part.text)
        return masked(ids, spans, trained)


class TextEncoder:
    """A tokenizer whose *control tokens* never come out of a text, even if the text spells them.

    Control tokens are those that the tokenizer marks as special, and bos, eos, pad and the vision tokens in any case.
    Their literals in a text are encoded as any other characters. Added tokens that are not special (runs of spaces,
    `<think>`) are vocabulary like the rest.
    """

    def __init__(self, file: str, bos: int, named: Collection[int]) -> None:
        from tokenizers import AddedToken, Tokenizer

        self._tokenizer: Tokenizer = Tokenizer.from_file(file)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder()
        self.control: dict[int, AddedToken] = {i: token for i, token in added.items() if token.special}
        """Control tokens by their id."""
        for i in sorted(set(named) - set(self.control)):
            token = added.get(i) or AddedToken(self._tokenizer.id_to_token(i), normalized=False)
            token.special = True
            self._tokenizer.add_special_tokens([token])
            self.control[i] = token
        self._forbidden = frozenset(self.control)
        self.adds_bos = adds_bos(self._tokenizer, bos)
        """Whether the tokenizer itself puts bos before a plain text."""
        # The batch call needs no offsets and is faster. But where the library may use threads it marks the process as
        # one that did, and its forked children (a trainer's own, with `workers = 0`) pay for that.
        self._lock = threading.Lock()
        self._batch = os.environ.get("TOKENIZERS_PARALLELISM", "").lower() == "false"

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Raises `BadSample` for text that is not valid Unicode."""
        if not text:
            return []
        if not self._batch:
            ids = self._encode(text, literals=True)[0]
        else:
            with self._lock:
                self._tokenizer.encode_special_tokens = True
                try:
                    ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
                except TypeError as error:
                    raise _not_unicode(text, error) from error
        return ids if self._forbidden.isdisjoint(ids) else self.encode_with_spans(text)[0]

    def encode_with_spans(self, text: str) -> tuple[list[int], Spans]:
        """Ids of a text, and for each token the characters (start, stop) that it stands for."""
        if not text:
            return [], []
        ids, spans = self._encode(text, literals=True)
        bad = next((i for i, found in enumerate(ids) if found in self._forbidden), None)
        if bad is None:
            return ids, spans
        # A model whose plain vocabulary holds its control tokens (Unigram, WordPiece) found one. Cut it in two.
        start, stop = spans[bad]
        if stop - start < 2:
            raise BadSample(f"the tokenizer makes a control token of the text {text[start:stop]!r}")
        head, head_spans = self.encode_with_spans(text[: start + 1])
        tail, tail_spans = self.encode_with_spans(text[start + 1 :])
        return head + tail, head_spans + [(a + start + 1, b + start + 1) for a, b in tail_spans]

    def encode_with_control(self, text: str) -> tuple[list[int], Spans]:
        """As `encode_with_spans`, but control tokens that the text spells are control tokens: for what a chat template
        wrote."""
        return self._encode(text, literals=False) if text else ([], [])

    def _encode(self, text: str, literals: bool) -> tuple[list[int], Spans]:
        # The switch belongs to the tokenizer, and loaders of several threads may share it.
        with self._lock:
            self._tokenizer.encode_special_tokens = literals
            try:
                encoding = self._tokenizer.encode(text, add_special_tokens=False)
            except TypeError as error:
                raise _not_unicode(text, error) from error
        return encoding.ids, encoding.offsets


def text_encoder(vocabulary: Vocabulary) -> TextEncoder:
    """The process's own encoder: a large vocabulary takes time and memory to load, so all operators share it."""
    v = vocabulary
    named = {i for i in (v.bos, v.eos, v.vision_start, v.vision_end, v.image, v.video) if i >= 0}
    return _load_encoder(v.tokenizer_json, v.fingerprint, v.bos, frozenset(named))


@functools.lru_cache(maxsize=2)
def _load_encoder(file: str, fingerprint: str, bos: int, named: frozenset[int]) -> TextEncoder:
    encoder = TextEncoder(file, bos, named)
    return_freed_memory()
    return encoder


def image_writer(vocabulary: Vocabulary) -> Callable[[int], tuple[NDArray[np.int32], int]]:
    """What an image of so many tokens is in the text: ids, int32, `~id` throughout; and where its first image token is.

    The arrays are remembered: do not write to them. Raises `BadSample` where the recipe has no images.
    """
    before = [vocabulary.vision_start] if vocabulary.vision_start >= 0 else []
    after = [vocabulary.vision_end] if vocabulary.vision_end >= 0 else []

    @functools.lru_cache(maxsize=256)
    def write(tokens: int) -> tuple[NDArray[np.int32], int]:
        if vocabulary.image < 0:
            raise BadSample("the document has an image, but the recipe has no [vision] table")
        return ~np.array(before + [vocabulary.image] * tokens + after, np.int32), len(before)

    return write


def masked(
    ids: Sequence[int], spans: Sequence[tuple[int, int]], trained: Sequence[tuple[int, int]]
) -> NDArray[np.int32]:
    """Tokens, int32, `~id` where none of a token's characters lies in a trained span. Both kinds of spans ascend."""
    plain = np.array(ids, np.int32)
    tokens = ~plain
    for start, stop in trained:
        first = bisect_right(spans, start, key=_STOP)
        last = bisect_left(spans, stop, lo=first, key=_START)
        tokens[first:last] = plain[first:last]
    return tokens


_START, _STOP = itemgetter(0), itemgetter(1)


def _required(name: str, token: int, path: str) -> int:
    if token < 0:
        raise RecipeError(
            f"tokenizer.add_{name} asks for a {name} token, but the tokenizer at tokenizer.path = {path!r} names none; "
            f'set "{name}_token" in its tokenizer_config.json, or tokenizer.add_{name} = false'
        )
    return token


def _not_unicode(text: str, error: TypeError) -> Exception:
    """A lone surrogate cannot be UTF-8; the library only says that it wants a string."""
    try:
        text.encode()
    except UnicodeEncodeError as bad:
        return BadSample(f"the text is not valid Unicode: a lone surrogate at character {bad.start}")
    return error
