"""Three-axis positions of the Qwen-VL family (M-RoPE), for one document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def mrope_positions(
    length: int,
    images: Sequence[tuple[int, tuple[int, int, int]]],
    merge: int,
    out: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """(length, 3) int64: time, height and width of each token, as the models' `get_rope_index` gives them.

    `images`: (first image token, grid (t, h, w) in patches before merging), in order. Text counts on along all axes;
    an image counts its rows and columns from where the text stood, and the text goes on after the longer of the two.
    `out`: where to write, (length, 3) of any integer type.
    """
    if out is None:
        out = np.empty((length, 3), np.int64)
    at = position = 0
    for offset, (frames, patch_rows, patch_columns) in images:
        rows, columns = patch_rows // merge, patch_columns // merge
        text = offset - at
        out[at:offset] = np.arange(position, position + text)[:, None]
        position += text
        at = offset + frames * rows * columns
        block = out[offset:at].reshape(frames, rows, columns, 3)
        block[..., 0] = np.arange(position, position + frames)[:, None, None]
        block[..., 1] = np.arange(position, position + rows)[:, None]
        block[..., 2] = np.arange(position, position + columns)
        position += max(rows, columns)
    out[at:length] = np.arange(position, position + length - at)[:, None]
    return out
