"""An operator that sleeps: stands for a decoder of a fixed time."""

from __future__ import annotations

import time

from zephon_vl.contracts import Context, Operator, Sample


class Sleep(Operator):
    """Sleeps once for each sample."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def measure(self, sample: Sample, context: Context) -> Sample:
        time.sleep(self.seconds)
        return sample
