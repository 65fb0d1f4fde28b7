"""An engine that plans and renders nothing: what planning costs, and the state that a run has after many steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from zephon_vl.engine import Engine, build_engine
from zephon_vl.messages import BatchHeader, Start
from zephon_vl.tasks import MeasureResult, MeasureTask, RenderResult, RenderTask, Setup, Task

Measure = Callable[[MeasureTask], MeasureResult]


class PlanOnly:
    """The real engine of one rank. Measurements are answered by `measure`, rendering by nothing.

    Args:
        setup: of the run.
        rank: of `ranks`.
        measure: in place of the workers.
        start_step: first step to give headers of.
    """

    def __init__(self, setup: Setup, rank: int, ranks: int, measure: Measure, start_step: int = 0) -> None:
        start = Start(
            setup=setup,
            dp_rank=rank,
            dp_size=ranks,
            microbatch_size=setup.layouts[0].rows,
            workers=0,
            prefetch=2,
            slabs=4,
            states={},
            start_step=start_step,
            done=[],
            microbatch=0,
        )
        self._measure = measure
        self._tasks: deque[Task] = deque()
        self._headers: deque[BatchHeader] = deque()
        self.engine: Engine = build_engine(start, self, self._headers.append)

    def submit(self, task: Task, priority: int) -> None:
        """Executor of the engine; what is asked for first is answered first."""
        self._tasks.append(task)

    def headers(self) -> Iterator[BatchHeader]:
        """Microbatches, taken and given back at once. For ever where the recipe repeats."""
        taken = 0
        while not self.engine.ended or self._tasks or self._headers:
            self.engine.pump()
            while self._headers:
                header = self._headers.popleft()
                taken += 1
                self.engine.on_consumed(taken)
                self.engine.on_released(header.slab)
                yield header
            for _ in range(len(self._tasks)):
                task = self._tasks.popleft()
                self.engine.on_result(task, self._answer(task))

    def _answer(self, task: Task) -> MeasureResult | RenderResult:
        if isinstance(task, RenderTask):
            return RenderResult(task.id, [0] * len(task.rows), [])
        return self._measure(task)
