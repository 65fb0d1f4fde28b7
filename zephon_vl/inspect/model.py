"""What the page shows, taken from delivered batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from zephon_vl.batch import Batch
from zephon_vl.contracts import IGNORE, DocumentRef, SourceReader
from zephon_vl.inspect.words import TokenView, Words
from zephon_vl.operators.batch import PADDING
from zephon_vl.operators.patchify import patches_to_image
from zephon_vl.order import orders_of
from zephon_vl.recipe import Recipe
from zephon_vl.tasks import Setup
from zephon_vl.topology import EMPTY


@dataclass(frozen=True)
class ImageView:
    """An image in its place."""

    pixels: NDArray[np.uint8]
    """(height, width, 3)."""
    grid: tuple[int, int, int]
    tokens: int


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens that are all trained on or all not; text, or an image."""

    trained: bool
    first: int
    """Position in the sequence of its first token."""
    length: int
    words: list[TokenView] = field(default_factory=list)
    image: ImageView | None = None


@dataclass(frozen=True)
class DocumentView:
    """One document, or a piece of one."""

    source: int
    """Index in the recipe; -1 for the dummy image that closes a sequence without any."""
    name: str
    shard: str
    key: str
    epoch: int
    piece: tuple[int, int]
    """Tokens of the document that it holds."""
    length: int
    trained: int
    """Tokens of it that are trained on."""
    runs: list[Run] = field(default_factory=list)

    @property
    def images(self) -> int:
        return sum(run.image is not None for run in self.runs)


@dataclass(frozen=True)
class SequenceView:
    """One row of a microbatch."""

    slot: int
    """Place in the global batch, `EMPTY` (-1) for a row that only fills its microbatch up."""
    lane: int
    """-1 for a row that only fills its microbatch up."""
    seq_len: int
    used: int
    valid: int
    documents: list[DocumentView]

    @property
    def empty(self) -> bool:
        """Whether no document stands in it, only the dummy image of a vision recipe."""
        return self.used == 0


class _Names:
    """Finds what a reference stands for."""

    def __init__(self, recipe: Recipe, sources: Sequence[SourceReader]) -> None:
        self._sources = sources
        self._orders = orders_of(recipe, sources)

    def find(self, ref: DocumentRef) -> tuple[str, str, str, int]:
        """(source, shard, key, epoch)."""
        epochs, indices = self._orders[ref.source].indices(np.array([ref.take]))
        source = self._sources[ref.source]
        return source.name, *source.locate(int(indices[0])), int(epochs[0])


def sequences_of(batches: Sequence[Batch], setup: Setup, sources: Sequence[SourceReader]) -> Iterator[SequenceView]:
    """The sequences of batches, as the page shows them, with the rows that only fill a microbatch up.

    Args:
        sources: opened, in the order of the recipe.
    """
    words = Words(Tokenizer.from_file(setup.vocabulary.tokenizer_json))
    names = _Names(setup.recipe, sources)
    for batch in batches:
        pictures = _pictures(batch)
        for row, slot in enumerate(batch.slots):
            yield SequenceView(
                slot=slot,
                lane=EMPTY if slot == EMPTY else slot % setup.recipe.lanes,
                seq_len=batch.input_ids.shape[1],
                used=sum(ref.stop - ref.start for ref in batch.documents[row]),
                valid=int(batch.valid_tokens[row]),
                documents=list(_documents(batch, row, names, words, setup.vocabulary.image, pictures[row])),
            )


def _pictures(batch: Batch) -> list[list[ImageView]]:
    """The images of each row, in order."""
    found: list[list[ImageView]] = [[] for _ in batch.slots]
    if batch.pixel_patches is None or batch.grid_thw is None or batch.image_rows is None or batch.rules is None:
        return found
    patches = batch.pixel_patches.numpy()
    start = 0
    for (t, h, w), row in zip(batch.grid_thw.tolist(), batch.image_rows.tolist(), strict=True):
        stop = start + t * h * w
        pixels = patches_to_image(patches[start:stop], (t, h, w), batch.rules)
        found[row].append(ImageView(pixels, (t, h, w), (stop - start) // batch.rules.merge**2))
        start = stop
    return found


def _documents(
    batch: Batch, row: int, names: _Names, words: Words, image_token: int, pictures: list[ImageView]
) -> Iterator[DocumentView]:
    ids = batch.input_ids[row].numpy()
    labels = batch.labels[row].numpy()
    numbers = batch.document_ids[row].numpy()
    refs = batch.documents[row]
    left = list(pictures)
    for number in range(int(numbers.max()) + 1 if (numbers != PADDING).any() else 0):
        where = np.flatnonzero(numbers == number)
        inside = slice(int(where[0]), int(where[-1]) + 1)
        runs = list(_runs(ids[inside], labels[inside], inside.start, words, image_token, left))
        source, name, shard, key, epoch, piece = -1, "dummy image", "", "", 0, (0, len(where))
        if number < len(refs):
            name, shard, key, epoch = names.find(refs[number])
            source, piece = refs[number].source, (refs[number].start, refs[number].stop)
        trained = sum(run.length for run in runs if run.trained)
        yield DocumentView(source, name, shard, key, epoch, piece, len(where), trained, runs)


def _runs(
    ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    first: int,
    words: Words,
    image_token: int,
    left: list[ImageView],
) -> Iterator[Run]:
    """Runs of a document; takes its images from the front of `left`."""
    # A token is trained on if it is the label of the position before it.
    trained = np.concatenate([[False], labels[:-1] != IGNORE])
    at = 0
    while at < len(ids):
        if ids[at] == image_token and left:
            image = left.pop(0)
            yield Run(False, first + at, image.tokens, image=image)
            at += image.tokens
            continue
        stop = at + 1
        while stop < len(ids) and ids[stop] != image_token and trained[stop] == trained[at]:
            stop += 1
        shown = words.of(ids[at:stop].tolist(), labels[at:stop].tolist(), first + at)
        yield Run(bool(trained[at]), first + at, stop - at, shown)
        at = stop
