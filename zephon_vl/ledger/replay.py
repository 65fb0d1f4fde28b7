"""Renders rows again from what a ledger says of them, without running the steps before."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from zephon_vl.agenda import Turn
from zephon_vl.batch import Batch, batch_over
from zephon_vl.contracts import DocumentRef, Piece, Skipped
from zephon_vl.errors import LedgerError
from zephon_vl.lane import ClosedSequence
from zephon_vl.layout import BatchLayout
from zephon_vl.ledger.format import LedgerDocument, text_of
from zephon_vl.ledger.reader import LedgerRow, Segment
from zephon_vl.plan import MicrobatchPlanner
from zephon_vl.presets import resolve_vision
from zephon_vl.recipe import Recipe
from zephon_vl.runner import TaskRunner
from zephon_vl.schedule import Schedule
from zephon_vl.slabs import Slab
from zephon_vl.tasks import MeasureResult, MeasureTask, RenderResult, Setup


@dataclass(frozen=True, slots=True)
class Replayed:
    """A row as it is rendered now."""

    row: LedgerRow
    batch: Batch
    """The row alone."""
    digest: str
    """SHA-256 in hexadecimal."""
    moved: list[str]
    """A sentence for each document that is now another sample."""

    @property
    def equal(self) -> bool:
        """Whether it has the digest that the ledger says."""
        return self.digest == self.row.digest.hex()


def recipe_of(segment: Segment) -> Recipe:
    """The recipe that a segment was written by. Raises `LedgerError` if this library cannot read it."""
    try:
        return msgspec.json.decode(segment.header.recipe, type=Recipe)
    except msgspec.DecodeError as error:
        raise LedgerError(
            f"the recipe in {segment.path} is not one of this version of the library: {error}. Give a recipe file"
        ) from error


class Replay:
    """Renders rows of a recipe in this process, and keeps them all.

    Args:
        setup: of the recipe that the rows are from, for microbatches of one row.
    """

    def __init__(self, setup: Setup) -> None:
        self.recipe = setup.recipe
        self._numbers = {source.name: number for number, source in enumerate(setup.recipe.sources)}
        self._schedule = Schedule(setup.recipe)
        self._layouts = [BatchLayout(spec) for spec in setup.layouts]
        self._rules = resolve_vision(setup.recipe.vision) if setup.recipe.vision else None
        self._runner = TaskRunner(setup)
        self._planner = MicrobatchPlanner(setup, self._layouts)
        self._rendered = 0

    def render(self, row: LedgerRow) -> Replayed:
        """Measure the documents of a row and render it.

        Args:
            row: with its documents.

        Raises:
            LedgerError: if a document is not there any more, cannot be used, or is shorter now.
        """
        lane = row.slot % self.recipe.lanes
        pieces = [self._piece(document, row) for document in row.documents]
        phase = self._schedule.phase_of(row.step)
        slab = Slab.create(self._rendered, self._layouts[phase].size)
        self._rendered += 1
        self._runner.attach(slab)
        planner = self._planner
        turn = Turn(row.step, phase, row.microbatch, True, [row.slot])
        job = planner.plan(index=0, turn=turn, slab=slab, sequences=[ClosedSequence(lane, 0, pieces, b"", [], [])])
        tasks = planner.tasks(job)
        job.remaining = len(tasks)
        for task in tasks:
            result = self._runner.run(task)
            assert isinstance(result, RenderResult)
            planner.finish(job, task, result)
        batch = batch_over(job.header, slab, self._layouts[phase], self._rules, slab.close)
        return Replayed(row, batch, batch.digests()[row.slot], self._moved(row))

    def _piece(self, document: LedgerDocument, row: LedgerRow) -> Piece:
        where = f"step {row.step}, slot {row.slot}: {document.source}: {document.shard}: {document.key}"
        source = self._numbers.get(document.source)
        if source is None:
            raise LedgerError(f"{where}: the recipe has no source {document.source!r}. Give the recipe of the run")
        count = len(self._runner.source(source))
        if document.index >= count:
            raise LedgerError(
                f"{where} is sample {document.index} of its source, which has only {count} now: the data has changed"
            )
        result = self._runner.run(MeasureTask(0, source, [(document.take, document.epoch, document.index)]))
        assert isinstance(result, MeasureResult)
        measured = result.results[0]
        if isinstance(measured, Skipped):
            reason = measured.reason or "a filter drops it"
            raise LedgerError(f"{where} cannot be used any more: {reason}. The data or an operator has changed")
        tokens = np.frombuffer(measured.tokens, "<i4")
        if document.stop > len(tokens):
            raise LedgerError(
                f"{where} has {len(tokens)} tokens now, but its tokens {document.start}:{document.stop} were used: the "
                "data, an operator or the tokenizer has changed"
            )
        ref = DocumentRef(source, document.take, document.start, document.stop)
        return Piece(ref, tokens, measured.images, (document.epoch, document.index))

    def _moved(self, row: LedgerRow) -> list[str]:
        moved = []
        for document in row.documents:
            shard, key = map(text_of, self._runner.source(self._numbers[document.source]).locate(document.index))
            if (shard, key) != (document.shard, document.key):
                was = f"{document.source}: {document.shard}: {document.key}"
                moved.append(f"sample {document.index} of {was} is now {shard}: {key}")
        return moved
