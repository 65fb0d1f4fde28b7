"""What the coordinator and its workers tell each other. Encoded with MessagePack; pixels never travel."""

from __future__ import annotations

import heapq
import itertools

import msgspec

from zephon_vl.contracts import Measured, RowPlan, Skipped, Vocabulary, Where
from zephon_vl.layout import LayoutSpec
from zephon_vl.recipe import Recipe
from zephon_vl.sources import SourceHandle


class Setup(msgspec.Struct, array_like=True):
    """Everything that a process needs to build its own pipeline."""

    recipe: Recipe
    vocabulary: Vocabulary
    sources: list[SourceHandle]
    layouts: list[LayoutSpec]
    """Of each phase."""
    pipeline: str
    """`module:object`."""


class SlabGiven(msgspec.Struct, tag="slab", array_like=True):
    """A slab that later tasks refer to; its descriptor comes along."""

    number: int
    size: int


class MeasureTask(msgspec.Struct, tag="measure", array_like=True):
    """Measure samples of one source. `samples`: (take, epoch, index)."""

    id: int
    source: int
    samples: list[tuple[int, int, int]]


class ImagePlan(msgspec.Struct, array_like=True, gc=False):
    """One image and the place of its patches."""

    source: int
    epoch: int
    index: int
    ordinal: int
    where: Where
    size: tuple[int, int]
    target: tuple[int, int]
    grid: tuple[int, int, int]
    first_patch: int
    """Row of `pixel_patches` where it starts."""
    cost: int

    @property
    def place(self) -> slice:
        """Its rows of `pixel_patches`."""
        t, h, w = self.grid
        return slice(self.first_patch, self.first_patch + t * h * w)


class RenderTask(msgspec.Struct, tag="render", array_like=True):
    """Write rows and images to a slab."""

    id: int
    slab: int
    phase: int
    """Which the slab is laid out for."""
    rows: list[RowPlan]
    images: list[ImagePlan]


class MeasureResult(msgspec.Struct, tag="measured", array_like=True):
    id: int
    results: list[Measured | Skipped]


class ImageFailure(msgspec.Struct, array_like=True):
    """An image that could not be decoded after its place was planned; it is grey."""

    first_patch: int
    """Which image of the microbatch."""
    reason: str
    shard: str
    key: str


class RenderResult(msgspec.Struct, tag="rendered", array_like=True):
    id: int
    valid: list[int]
    """Labels that count, for each row of the task."""
    failures: list[ImageFailure]


class Failure(msgspec.Struct, tag="failed", array_like=True):
    """A task that cannot be done, ever: the run stops."""

    id: int
    kind: str
    """Class name of the error."""
    text: str


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """A worker has started: what kills it from here on may be its task."""

    pid: int


Task = MeasureTask | RenderTask


class TaskQueue:
    """Tasks that wait: lower priorities first, then in order."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Task]] = []
        self._order = itertools.count()

    def push(self, task: Task, priority: int) -> None:
        heapq.heappush(self._heap, (priority, next(self._order), task))

    def pop(self) -> Task:
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)


Result = MeasureResult | RenderResult | Failure
FromWorker = Result | Ready
ToWorker = SlabGiven | MeasureTask | RenderTask

to_worker_decoder = msgspec.msgpack.Decoder(ToWorker)
failure_decoder = msgspec.msgpack.Decoder(Failure)
from_worker_decoder = msgspec.msgpack.Decoder(FromWorker)
encode = msgspec.msgpack.Encoder().encode
