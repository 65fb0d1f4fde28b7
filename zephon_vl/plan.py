"""From closed sequences to a microbatch: every byte gets its place before a pixel is decoded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from zephon_vl.agenda import Turn
from zephon_vl.contracts import IGNORE, ImageSlot, Piece, RowPiece, RowPlan
from zephon_vl.lane import ClosedSequence
from zephon_vl.layout import BatchLayout
from zephon_vl.messages import BadRecord, BatchHeader
from zephon_vl.slabs import Slab
from zephon_vl.tasks import ImagePlan, RenderResult, RenderTask, Setup

_ROWS_PER_TASK = 8
_IMAGES_PER_TASK = 8
_PIXELS_PER_TASK = 2_500_000
"""About 15 ms of decoding: a hundred times what a task costs to hand out, and short enough to share out evenly."""


@dataclass(slots=True)
class _PlacedImage:
    """An image of a microbatch: where its patches start, and which labels go if its pixels fail."""

    plan: ImagePlan
    row: int
    start: int
    stop: int
    lane: int


@dataclass(slots=True)
class MicrobatchJob:
    """A microbatch on its way."""

    index: int
    slab: Slab
    header: BatchHeader
    rows: list[RowPlan] = field(default_factory=list)
    images: list[_PlacedImage] = field(default_factory=list)
    remaining: int = 0
    """Tasks that are not done yet."""
    failed: list[tuple[_PlacedImage, BadRecord]] = field(default_factory=list)


class MicrobatchPlanner:
    """Lays microbatches out, makes their render tasks and puts the results together."""

    def __init__(self, setup: Setup, layouts: Sequence[BatchLayout]) -> None:
        self._recipe, self._vocabulary = setup.recipe, setup.vocabulary
        self._layouts = layouts
        """Of each phase."""
        self._spec = layouts[0].spec
        self._views: dict[tuple[int, int], dict[str, NDArray]] = {}

    def plan(
        self,
        *,
        index: int,
        turn: Turn,
        slab: Slab,
        sequences: Sequence[ClosedSequence | None],
    ) -> MicrobatchJob:
        """Place the documents and images of `sequences` (None: an empty row) in the slab."""
        slots = turn.slots
        header = BatchHeader(
            step=turn.step,
            phase=turn.phase,
            microbatch=turn.microbatch,
            last=turn.last,
            slab=slab.number,
            slots=slots,
            images=0,
            patches=0,
            valid=[0] * len(slots),
            documents=[[] for _ in slots],
            states=list({s.lane: s.state for s in sequences if s is not None}.items()),
            samples=[],
            tokens=[0] * len(self._recipe.sources),
            filtered=0,
            bad=[],
        )
        job = MicrobatchJob(index, slab, header)
        grids: list[tuple[int, int, int]] = []
        image_rows: list[int] = []
        for row, sequence in enumerate(sequences):
            self._place_row(job, row, sequence, grids, image_rows)
        header.images = len(grids)
        if grids:
            fields = self.fields(slab, turn.phase)
            fields["grid_thw"][: len(grids)] = grids
            fields["image_rows"][: len(grids)] = image_rows
        return job

    def tasks(self, job: MicrobatchJob) -> list[RenderTask]:
        """Render tasks of about equal cost; ids are set by the owner."""
        chunks: list[list[ImagePlan]] = []
        cost = _PIXELS_PER_TASK
        for image in job.images:
            cost += image.plan.cost
            if cost > _PIXELS_PER_TASK or len(chunks[-1]) >= _IMAGES_PER_TASK:
                chunks.append([])
                cost = image.plan.cost
            chunks[-1].append(image.plan)
        rows = [job.rows[first : first + _ROWS_PER_TASK] for first in range(0, len(job.rows), _ROWS_PER_TASK)]
        # Rows go along with the images: a row alone costs less than the message.
        pairs = itertools.zip_longest(rows, chunks, fillvalue=[])
        slab, phase = job.slab.number, job.header.phase
        return [RenderTask(-1, slab, phase, rows, images) for rows, images in pairs]

    def finish(self, job: MicrobatchJob, task: RenderTask, result: RenderResult) -> bool:
        """Take the result of one task; True when the microbatch is whole."""
        for row, valid in zip(task.rows, result.valid, strict=True):
            job.header.valid[row.row] += valid
        for failure in result.failures:
            image = next(image for image in job.images if image.plan.first_patch == failure.first_patch)
            source = self._recipe.sources[image.plan.source].name
            record = BadRecord(
                source, failure.shard, failure.key, failure.reason, "render", image.lane, job.header.step
            )
            job.failed.append((image, record))
        job.remaining -= 1
        if job.remaining == 0:
            self._mask_failed(job)
        return job.remaining == 0

    def _mask_failed(self, job: MicrobatchJob) -> None:
        """Documents with a grey image teach nothing: their labels go. In order, whatever finished first."""
        labels = self.fields(job.slab, job.header.phase)["labels"]
        for image, record in sorted(job.failed, key=lambda failed: failed[0].plan.first_patch):
            target = labels[image.row, image.start : image.stop]
            job.header.valid[image.row] -= int(np.count_nonzero(target != IGNORE))
            target[:] = IGNORE
            job.header.bad.append(record)

    def _place_row(
        self,
        job: MicrobatchJob,
        row: int,
        sequence: ClosedSequence | None,
        grids: list[tuple[int, int, int]],
        image_rows: list[int],
    ) -> None:
        plan = RowPlan(row, [])
        start, images_before = 0, len(grids)
        for piece in sequence.pieces if sequence else []:
            plan.pieces.append(_row_piece(piece))
            assert sequence is not None
            self._place_images(job, row, piece, start, sequence.lane, grids)
            start += len(piece)
            job.header.documents[row].append(piece.ref)
            job.header.tokens[piece.ref.source] += len(piece)
        if self._spec.row_bytes and len(grids) == images_before:
            plan.pieces.append(self._place_dummy(job, grids))
        image_rows.extend([row] * (len(grids) - images_before))
        job.rows.append(plan)

    def _place_images(
        self, job: MicrobatchJob, row: int, piece: Piece, start: int, lane: int, grids: list[tuple[int, int, int]]
    ) -> None:
        for image in piece.inside:
            plan = _image_plan(image, piece, job.header.patches)
            job.images.append(_PlacedImage(plan, row, start, start + len(piece), lane))
            job.header.patches += _patches(image.grid)
            grids.append(image.grid)

    def _place_dummy(self, job: MicrobatchJob, grids: list[tuple[int, int, int]]) -> RowPiece:
        """One black image of a single token, not trained on, so that every microbatch runs the vision tower."""
        vocabulary, merge = self._vocabulary, self._spec.merge
        grid = (1, merge, merge)
        first = job.header.patches
        self.fields(job.slab, job.header.phase)["pixel_patches"][first : first + _patches(grid)] = 0
        job.header.patches += _patches(grid)
        grids.append(grid)
        delimited = vocabulary.vision_start >= 0 and vocabulary.vision_end >= 0
        ids = [vocabulary.vision_start, vocabulary.image, vocabulary.vision_end] if delimited else [vocabulary.image]
        return RowPiece((~np.asarray(ids, dtype="<i4")).tobytes(), [(int(delimited), grid)])

    def fields(self, slab: Slab, phase: int) -> dict[str, NDArray]:
        """All fields of a slab as arrays, as it is laid out in a phase."""
        key = (slab.number, phase)
        if key not in self._views:
            self._views[key] = self._layouts[phase].views(slab.array)
        return self._views[key]


def _row_piece(piece: Piece) -> RowPiece:
    start, stop = piece.ref.start, piece.ref.stop
    return RowPiece(piece.tokens[start:stop].tobytes(), [(im.offset - start, im.grid) for im in piece.inside])


def _image_plan(image: ImageSlot, piece: Piece, first_patch: int) -> ImagePlan:
    epoch, index = piece.sample
    return ImagePlan(
        source=piece.ref.source,
        epoch=epoch,
        index=index,
        ordinal=image.ordinal,
        where=image.where,
        size=image.size,
        target=image.target,
        grid=image.grid,
        first_patch=first_patch,
        cost=image.cost,
    )


def _patches(grid: tuple[int, int, int]) -> int:
    return grid[0] * grid[1] * grid[2]
