"""The contracts between the engine, the sources, the operators and the pipelines. Read this page first.

A record becomes a `Sample`: an ordered list of text and image parts (or chat messages made of such parts). An
*operator* is one loading step with up to three faces:

- `measure(sample, context)` runs in a worker, in any order, and decides *sizes*: token ids, and the exact grid of each
  image from its header. No pixel is touched.
- `accumulate` runs in a lane, single-threaded: `Mixer` chooses the next source, `Packer` places documents in open
  sequences. Its state is checkpointed.
- `render(pixels, job)` runs in a worker, in any order: it decodes, resizes and writes patches to their final place.

A *pipeline* lists the operators. The engine calls the faces; it knows no operator by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import numpy as np

from zephon_vl.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zephon_vl.recipe import Recipe, SourceConfig

IGNORE = -100
"""Label of a position that is not trained on (the default `ignore_index` of `torch.nn.CrossEntropyLoss`)."""


# --- where the bytes of an image lie -------------------------------------------------------------------------------


class Span(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    """Bytes of a shard: `size` bytes from `offset` of the shard number `shard` of the source."""

    shard: int
    offset: int
    size: int


class File(msgspec.Struct, frozen=True, array_like=True, tag="f", gc=False):
    """A whole file, by a path relative to the source's image root."""

    path: str


Where = Span | File | None
"""None: the bytes are inside the record (Parquet cell, base64 in JSON) or were made by a user's operator; rendering
reads the sample again and takes the image by its ordinal."""


# --- samples: what measure works on --------------------------------------------------------------------------------


@dataclass(slots=True)
class TextPart:
    """Text of a document. `train` is False for text that is context only."""

    text: str
    train: bool = True


@dataclass(slots=True)
class ImagePart:
    """One image of a document. Measure fills `size`, `target` and `grid` from left to right."""

    where: Where = None
    data: bytes | None = None
    """Encoded bytes, when the record holds them or an operator made them."""
    name: str = ""
    """What a person would look for: member name, path or field."""
    size: tuple[int, int] | None = None
    """(width, height) in pixels as a person sees the image, EXIF orientation applied. Set by the decode operator."""
    target: tuple[int, int] | None = None
    """(width, height) in pixels after resizing. Set by the resize operator."""
    grid: tuple[int, int, int] | None = None
    """(t, h, w) in patches, before merging. Set by the patchify operator."""
    tokens: int = 0
    """Number of image tokens in the text. Set by the patchify operator."""
    decode_cost: int = 0
    """Pixels that decoding touches; the engine balances work with it."""


Part = TextPart | ImagePart


@dataclass(slots=True)
class Message:
    """One turn of a chat. Only turns with `train` are trained on (assistant turns)."""

    role: str
    parts: list[Part]
    train: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """Further keys of the message that the chat template may use (`name`, `tool_calls`, ...)."""


@dataclass(slots=True)
class Sample:
    """A record on its way to a document. `parts` for plain documents, `messages` for chats; never both."""

    key: str
    shard: str
    parts: list[Part] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    tools: list[Any] | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    """The small fields of the raw record, for a user's operators (large binary members are left out)."""

    tokens: NDArray[np.int32] | None = None
    """Token ids, int32; `~id` (negative) where the token is not trained on. Set by the tokenize operator."""
    image_offsets: list[int] = field(default_factory=list)
    """For each image its first image token in `tokens`. Set by the tokenize operator."""

    def all_parts(self) -> Iterator[Part]:
        """Every part in document order, through messages too."""
        yield from self.parts
        for message in self.messages:
            yield from message.parts

    def images(self) -> list[ImagePart]:
        """Every image in document order; an image's place in this list is its ordinal."""
        return [part for part in self.all_parts() if isinstance(part, ImagePart)]


class SourceReader(Protocol):
    """A source opened in one process: true random access by sample index."""

    name: str

    def __len__(self) -> int: ...

    def blocks(self) -> NDArray[np.int64]:
        """Cumulative sample counts of the parts that are cheap to read in sequence, from 0 to `len(self)`."""
        ...

    def locate(self, index: int) -> tuple[str, str]:
        """(shard name, key) of a sample, without reading it."""
        ...

    def fingerprint(self) -> Sequence[tuple[str, int, int, str]]:
        """(shard name, bytes, samples, SHA-256 or "") of every shard, in order."""
        ...

    def sample(self, index: int) -> Sample:
        """Read and parse one record. Raises `BadSample` or `StorageError`."""
        ...

    def image_bytes(self, where: Span | File, limit: int | None = None) -> bytes:
        """Encoded bytes of an image, at most `limit` from its start. Raises `BadSample` or `StorageError`."""
        ...


# --- operators -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Context:
    """What a measure face may use besides the sample."""

    source: SourceReader
    seed: int
    source_index: int
    epoch: int
    index: int
    ordinal: int = -1
    """Of the image being rendered; -1 at measure."""
    _rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """A generator keyed by (seed, source, epoch, sample, image): the same on any rank, worker and restart."""
        if self._rng is None:
            from zephon_vl.rng import sample_generator

            self._rng = sample_generator(self.seed, self.source.name, self.epoch, self.index, self.ordinal)
        return self._rng

    def image_bytes(self, part: ImagePart, limit: int | None = None) -> bytes:
        """Encoded bytes of an image part, wherever they lie; at most `limit` bytes from its start."""
        if part.data is not None:
            return part.data if limit is None else part.data[:limit]
        if part.where is None:
            raise BadSample(f"image {part.name!r} has neither bytes nor a place to read them from")
        return self.source.image_bytes(part.where, limit)


@dataclass(slots=True)
class ImageJob:
    """One image to render. `pixels` of the chain starts as the encoded bytes; the last operator fills `out`."""

    part: ImagePart
    out: NDArray[np.uint8]
    """(t * h * w, row) uint8, a view of the slab; rows are channel-last patches in the model's order."""
    context: Context
    """Its generator is keyed by the sample and the image's ordinal."""


class Operator:
    """One loading step. Override the faces that it has; the others are skipped.

    An operator is built once in each process and must not keep anything from one sample to the next.
    """

    text_only: bool = False
    """Its measure face neither reads nor changes images; it is left out when an image must be found again."""

    def measure(self, sample: Sample, context: Context) -> Sample | None:
        """Decide sizes. Return the sample (changed in place or new), or None to filter it out.

        Raise `BadSample` for a sample that cannot be used.
        """
        raise NotImplementedError

    def render(self, pixels: Any, job: ImageJob) -> Any:
        """Take the pixels of the operator before, hand them to the next. The last one writes `job.out`."""
        raise NotImplementedError


def has_face(operator: Operator, face: str) -> bool:
    """Whether the class of `operator` overrides the face."""
    return getattr(type(operator), face) is not getattr(Operator, face)


# --- accumulators: the single-threaded faces, one of each in a lane -----------------------------------------------


class Mixer(Protocol):
    """Chooses the source of the next document. State: `spent` tokens (or samples) per source."""

    spent: list[int]

    def choose(self, sizes: Sequence[int | None]) -> int:
        """Index of the source to take from next. `sizes`: tokens of each source's next document, None if it ended."""
        ...

    def charge(self, source: int, tokens: int) -> None:
        """Account a taken document."""
        ...


class DocumentRef(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A document or a piece of one: enough to measure it again.

    `take` numbers the samples of a source over all lanes and epochs: epoch = take // n, position = take % n.
    The piece holds the tokens `start:stop` of the document.
    """

    source: int
    take: int
    start: int
    stop: int


class ImageSlot(msgspec.Struct, array_like=True, gc=False):
    """An image inside a measured document."""

    offset: int
    """Index of its first image token."""
    tokens: int
    grid: tuple[int, int, int]
    ordinal: int
    where: Where
    size: tuple[int, int]
    """(width, height) from the header."""
    target: tuple[int, int]
    """(width, height) after resizing."""
    cost: int
    """Pixels to decode."""


class Measured(msgspec.Struct, array_like=True, tag="m", gc=False):
    """What a worker returns for a good sample. `tokens` is int32 little-endian, `~id` where not trained on."""

    tokens: bytes
    images: list[ImageSlot]


class Skipped(msgspec.Struct, array_like=True, tag="x", gc=False):
    """What a worker returns for a sample that is not used."""

    reason: str
    """Empty when a user's filter dropped it: that is not a fault."""
    shard: str
    key: str


@dataclass(slots=True)
class Piece:
    """A measured document, or a part of it, on its way into a sequence."""

    ref: DocumentRef
    tokens: NDArray[np.int32]
    """The whole document; the piece is `tokens[ref.start:ref.stop]`."""
    images: list[ImageSlot]
    """The images of the whole document; those of the piece are inside `ref.start:ref.stop`."""
    sample: tuple[int, int] = (0, 0)
    """(epoch, index) in its source."""
    _inside: list[ImageSlot] | None = None

    def __len__(self) -> int:
        return self.ref.stop - self.ref.start

    @property
    def inside(self) -> list[ImageSlot]:
        """The images of this piece, in order."""
        if self._inside is None:
            start, stop = self.ref.start, self.ref.stop
            self._inside = [im for im in self.images if start <= im.offset and im.offset + im.tokens <= stop]
        return self._inside


@dataclass(slots=True)
class OpenSequence:
    """A sequence that still has room."""

    pieces: list[Piece] = field(default_factory=list)
    used: int = 0
    images: int = 0

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.used += len(piece)
        self.images += len(piece.inside)


class Packer(Protocol):
    """Places documents in open sequences; each call closes at most one. State: `open` and `carry`."""

    open: list[OpenSequence]
    carry: Piece | None
    """What is left of the document placed last; placed before any other one."""

    def admit(self, piece: Piece) -> Piece | None:
        """The document as it will be placed, possibly truncated; None to drop it."""
        ...

    def place(self, piece: Piece) -> OpenSequence | None:
        """Place a piece, set `carry` to what is left of it, return the sequence that this closed, if any."""
        ...

    def flush(self) -> OpenSequence | None:
        """At the end of a run without repeats: close one more sequence, None when all are out."""
        ...


# --- rows: what a closed sequence becomes --------------------------------------------------------------------------


class RowPiece(msgspec.Struct, array_like=True, gc=False):
    """A document, or a piece of one, as it stands in a row."""

    tokens: bytes
    """int32 little-endian, `~id` where not trained on."""
    images: list[tuple[int, tuple[int, int, int]]]
    """(first image token, grid) inside the piece, in order."""


class RowPlan(msgspec.Struct, array_like=True, gc=False):
    """One row of a microbatch."""

    row: int
    pieces: list[RowPiece]


class RowWriter(Protocol):
    """Writes the token fields of rows; runs in workers."""

    def write(self, fields: Mapping[str, NDArray], plan: RowPlan) -> int:
        """Fill one row of every token field; return the number of labels that count."""
        ...


# --- pipelines -----------------------------------------------------------------------------------------------------


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes need to know of a tokenizer; -1 for a token that it does not have."""

    tokenizer_json: str
    """The `tokenizers` serialisation, as a path to a file."""
    fingerprint: str
    """SHA-256 over the serialisation and the chat template."""
    size: int
    bos: int = -1
    eos: int = -1
    pad: int = -1
    vision_start: int = -1
    vision_end: int = -1
    image: int = -1
    video: int = -1
    chat_template: str | None = None
    special_texts: dict[str, int] = {}
    """Every added token: its text and id."""


@dataclass(frozen=True)
class Chain:
    """The stateless faces of one source, each in its own order; operators without the face are left out."""

    measure: Sequence[Operator]
    render: Sequence[Operator]

    @classmethod
    def of(cls, measure: Sequence[Operator], render: Sequence[Operator]) -> Chain:
        """The operators of each list that have its face."""
        return cls(
            [operator for operator in measure if has_face(operator, "measure")],
            [operator for operator in render if has_face(operator, "render")],
        )


class Pipeline(Protocol):
    """A ready-made list of operators. Built from the recipe in each process, so that nothing is pickled."""

    def mixer(self, recipe: Recipe, weights: Sequence[float]) -> Mixer: ...

    def packer(self, recipe: Recipe) -> Packer: ...

    def chain(self, recipe: Recipe, source: SourceConfig, vocabulary: Vocabulary) -> Chain:
        """The operators with measure and render faces for one source. Called in workers only."""
        ...

    def row_writer(self, recipe: Recipe, vocabulary: Vocabulary) -> RowWriter:
        """What writes packed rows. Called in workers only."""
        ...


@runtime_checkable
class Preloads(Protocol):
    """A pipeline that has something to load once for all workers."""

    def preload(self, recipe: Recipe, vocabulary: Vocabulary) -> None:
        """Called once, in the process that workers are forked from, in a thread that ends with it: import modules,
        read what is large and is only read. Open no connections and start no threads, since they do not survive."""
        ...
