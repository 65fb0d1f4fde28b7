"""Patchify: the grid of each image, and its pixels as channel-last uint8 patches straight in their final place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zephon_vl.contracts import Context, ImageJob, Operator, Sample
from zephon_vl.errors import BadSample

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from zephon_vl.presets import VisionRules


class Patchify(Operator):
    """Sets `part.grid` and `part.tokens` from `part.target`; renders an RGB image into `job.out`."""

    def __init__(self, rules: VisionRules) -> None:
        self.rules = rules

    def measure(self, sample: Sample, context: Context) -> Sample:
        """The grid is (1, height, width) in patches; `merge` squared of them make a token."""
        patch, merge = self.rules.patch, self.rules.merge
        for part in sample.images():
            if part.target is None:
                raise ValueError(f"image {part.name!r} has no target size: the resize operator must come before")
            width, height = part.target
            if width % self.rules.factor or height % self.rules.factor:
                raise ValueError(
                    f"image {part.name!r} would be {width} x {height} pixels, which is not in whole tokens of "
                    f"{self.rules.factor} x {self.rules.factor}"
                )
            part.grid = (1, height // patch, width // patch)
            part.tokens = part.grid[1] * part.grid[2] // merge**2
        return sample

    def render(self, pixels: Image.Image | NDArray[np.uint8], job: ImageJob) -> None:
        """Writes an RGB image, (height, width, 3) uint8, to `job.out`, (h * w, patch * patch * 3) uint8.

        Raises:
            BadSample: when the pixels have another size than the plan, as with a header that lies.
        """
        image = np.asarray(pixels)
        grid = (1, image.shape[0] // self.rules.patch, image.shape[1] // self.rules.patch)
        if job.part.grid is not None and grid != tuple(job.part.grid):
            raise BadSample(
                f"image {job.part.name!r} came out as {grid[1]} x {grid[2]} patches, but its header promised "
                f"{job.part.grid[1]} x {job.part.grid[2]}"
            )
        write_patches(image, job.out, self.rules)


def write_patches(image: NDArray[np.uint8], out: NDArray[np.uint8], rules: VisionRules) -> None:
    """(height, width, 3) uint8, in whole tokens, to `out`, (h * w, patch * patch * 3) uint8: rows (y, x, channel)."""
    grid = (1, image.shape[0] // rules.patch, image.shape[1] // rules.patch)
    from_image, to_patches = _views(np.ascontiguousarray(image), out, grid, rules)
    to_patches[...] = from_image


def patches_to_image(patches: NDArray[np.uint8], grid: tuple[int, int, int], rules: VisionRules) -> NDArray[np.uint8]:
    """The inverse: (h * w, patch * patch * 3) uint8 and its grid (1, h, w) to (height, width, 3) uint8."""
    image = np.empty((grid[1] * rules.patch, grid[2] * rules.patch, 3), np.uint8)
    to_image, from_patches = _views(image, np.ascontiguousarray(patches), grid, rules)
    to_image[...] = from_patches
    return image


def _views(
    image: NDArray[np.uint8], patches: NDArray[np.uint8], grid: tuple[int, int, int], rules: VisionRules
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Both arrays in the order of the patches, one element a line of a patch: NumPy copies such an element at once,
    which is twice as fast as byte by byte."""
    _, h, w = grid
    patch, merge = rules.patch, rules.merge
    line = np.dtype((np.void, patch * 3))
    in_image = image.reshape(-1).view(line)
    in_patches = patches.reshape(-1).view(line)
    if rules.layout == "raster":
        return in_image.reshape(h, patch, w).transpose(0, 2, 1), in_patches.reshape(h, w, patch)
    blocks = (h // merge, w // merge)
    return (
        in_image.reshape(blocks[0], merge, patch, blocks[1], merge).transpose(0, 3, 1, 4, 2),
        in_patches.reshape(*blocks, merge, merge, patch),
    )
