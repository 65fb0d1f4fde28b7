"""Runs the stateless faces: measure and render. The same code in a worker and, with `workers = 0`, inline."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from zephon_vl.contracts import (
    Chain,
    Context,
    ImageJob,
    ImagePart,
    ImageSlot,
    Measured,
    Pipeline,
    RowWriter,
    Sample,
    Skipped,
    SourceReader,
)
from zephon_vl.errors import BadSample, RecipeError
from zephon_vl.layout import BatchLayout
from zephon_vl.sources import open_source
from zephon_vl.tasks import ImageFailure, ImagePlan, MeasureResult, MeasureTask, RenderResult, RenderTask, Setup

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zephon_vl.slabs import Slab

GREY = 128
"""Value of every byte of an image whose pixels cannot be decoded."""
_REMEMBERED_SAMPLES = 8


def load_pipeline(path: str) -> Pipeline:
    """Import `module:object`. Raises `RecipeError`."""
    module, _, name = path.partition(":")
    try:
        pipeline = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise RecipeError(f"pipeline is {path!r}, but that cannot be imported as module:object: {error}") from error
    missing = [face for face in ("mixer", "packer", "chain", "row_writer") if not hasattr(pipeline, face)]
    if missing:
        raise RecipeError(f"pipeline is {path!r}, but that object lacks {', '.join(missing)}: see contracts.Pipeline")
    return pipeline


class TaskRunner:
    """Executes tasks. Sources and operators are opened when first needed."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._pipeline = load_pipeline(setup.pipeline)
        self._layouts = [BatchLayout(spec) for spec in setup.layouts]
        self._slabs: dict[int, Slab] = {}
        self._fields: dict[tuple[int, int], dict[str, NDArray]] = {}
        self._opened: dict[int, SourceReader] = {}
        self._chains: dict[int, Chain] = {}
        self._samples: OrderedDict[tuple[int, int, int], Sample] = OrderedDict()
        self._row_writer: RowWriter | None = None

    def attach(self, slab: Slab) -> None:
        """Make a slab known to later render tasks."""
        self._slabs[slab.number] = slab

    def run(self, task: MeasureTask | RenderTask) -> MeasureResult | RenderResult:
        """Do one task. Errors that stop the run come out as `ZephonError`."""
        return self._measure(task) if isinstance(task, MeasureTask) else self._render(task)

    def source(self, number: int) -> SourceReader:
        """A source, opened in this process."""
        if number not in self._opened:
            recipe = self._setup.recipe
            self._opened[number] = open_source(recipe, recipe.sources[number], self._setup.sources[number])
        return self._opened[number]

    def chain(self, source: int) -> Chain:
        """The operators of a source, built in this process."""
        if source not in self._chains:
            recipe = self._setup.recipe
            self._chains[source] = self._pipeline.chain(recipe, recipe.sources[source], self._setup.vocabulary)
        return self._chains[source]

    # --- measure --------------------------------------------------------------------------------------------------

    def _measure(self, task: MeasureTask) -> MeasureResult:
        return MeasureResult(
            task.id, [self._measure_one(task.source, epoch, index) for _, epoch, index in task.samples]
        )

    def _measure_one(self, source: int, epoch: int, index: int) -> Measured | Skipped:
        reader = self.source(source)
        try:
            sample = self.measured_sample(source, epoch, index)
        except BadSample as bad:
            return Skipped(bad.reason, *reader.locate(index))
        if sample is None:
            return Skipped("", *reader.locate(index))
        assert sample.tokens is not None, "a pipeline must end in an operator that sets Sample.tokens"
        slots = [
            _slot(ordinal, part, offset)
            for ordinal, (part, offset) in enumerate(zip(sample.images(), sample.image_offsets, strict=True))
        ]
        return Measured(np.ascontiguousarray(sample.tokens, dtype="<i4").tobytes(), slots)

    def measured_sample(self, source: int, epoch: int, index: int, images_only: bool = False) -> Sample | None:
        """A sample after its measure faces; None if a filter dropped it. Raises `BadSample`."""
        reader = self.source(source)
        sample = reader.sample(index)
        context = Context(reader, self._setup.recipe.seed, source, epoch, index)
        for operator in self.chain(source).measure:
            if images_only and operator.text_only:
                continue
            sample = operator.measure(sample, context)
            if sample is None:
                return None
        return sample

    # --- render ---------------------------------------------------------------------------------------------------

    def _render(self, task: RenderTask) -> RenderResult:
        fields = self._fields_of(task.slab, task.phase)
        if self._row_writer is None:
            self._row_writer = self._pipeline.row_writer(self._setup.recipe, self._setup.vocabulary)
        valid = [self._row_writer.write(fields, row) for row in task.rows]
        failures = [failure for plan in task.images if (failure := self._render_image(fields, plan)) is not None]
        return RenderResult(task.id, valid, failures)

    def _fields_of(self, slab: int, phase: int) -> dict[str, NDArray]:
        if (slab, phase) not in self._fields:
            self._fields[slab, phase] = self._layouts[phase].views(self._slabs[slab].array)
        return self._fields[slab, phase]

    def _render_image(self, fields: dict[str, NDArray], plan: ImagePlan) -> ImageFailure | None:
        out = fields["pixel_patches"][plan.place]
        reader = self.source(plan.source)
        context = Context(reader, self._setup.recipe.seed, plan.source, plan.epoch, plan.index, plan.ordinal)
        try:
            part = self._part(plan)
            job = ImageJob(part, out, context)
            pixels = context.image_bytes(part)
            for operator in self.chain(plan.source).render:
                pixels = operator.render(pixels, job)
        except BadSample as bad:
            out[:] = GREY
            return ImageFailure(plan.first_patch, bad.reason, *reader.locate(plan.index))
        return None

    def _part(self, plan: ImagePlan) -> ImagePart:
        if plan.where is not None:
            name = f"#{plan.ordinal + 1}"
            return ImagePart(where=plan.where, name=name, size=plan.size, target=plan.target, grid=plan.grid)
        part = self._sample_again(plan).images()[plan.ordinal]
        if part.grid != plan.grid:
            raise BadSample(f"the image changed while the run went on: its grid was {plan.grid}, is {part.grid} now")
        return part

    def _sample_again(self, plan: ImagePlan) -> Sample:
        """The sample of an image whose bytes lie inside the record; a few are remembered, as their images come
        together."""
        key = (plan.source, plan.epoch, plan.index)
        if key not in self._samples:
            sample = self.measured_sample(*key, images_only=True)
            if sample is None:
                raise BadSample(
                    "a filter that kept this sample at measure dropped it at render: it must not depend on chance"
                )
            self._samples[key] = sample
            if len(self._samples) > _REMEMBERED_SAMPLES:
                self._samples.popitem(last=False)
        return self._samples[key]


def _slot(ordinal: int, part: ImagePart, offset: int) -> ImageSlot:
    assert part.grid is not None and part.size is not None and part.target is not None
    where = part.where if part.data is None else None
    return ImageSlot(offset, part.tokens, part.grid, ordinal, where, part.size, part.target, part.decode_cost)
