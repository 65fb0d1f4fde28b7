"""Order of the patches and of the bytes inside them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vision_chain import encode, measure, photograph, render

from zephon_vl.contracts import Context, ImageJob, ImagePart
from zephon_vl.errors import BadSample
from zephon_vl.operators.patchify import Patchify, patches_to_image, write_patches
from zephon_vl.presets import PRESETS, VisionRules

presets = st.sampled_from(sorted(PRESETS.values(), key=lambda rules: rules.preset))


@given(presets, st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_patches_stand_in_the_models_order_and_go_back(rules: VisionRules, rows: int, columns: int, seed: int) -> None:
    p, h, w = rules.patch, rows * rules.merge, columns * rules.merge
    image = np.random.default_rng(seed).integers(0, 256, (h * p, w * p, 3), dtype=np.uint8)
    out = np.empty((h * w, rules.row_bytes), np.uint8)
    write_patches(image, out, rules)
    if rules.layout == "raster":
        order = [(y, x) for y in range(h) for x in range(w)]
    else:
        two = range(rules.merge)
        order = [
            (by * rules.merge + y, bx * rules.merge + x)
            for by in range(rows)
            for bx in range(columns)
            for y in two
            for x in two
        ]
    for row, (y, x) in zip(out, order, strict=True):
        np.testing.assert_array_equal(row.reshape(p, p, 3), image[y * p : (y + 1) * p, x * p : (x + 1) * p])
    np.testing.assert_array_equal(patches_to_image(out, (1, h, w), rules), image)


def test_rows_are_written_in_place_and_nowhere_else() -> None:
    rules = PRESETS["qwen3_5"]
    data = encode(photograph(200, 150), "PNG")
    part = measure(data, rules)
    rows = render(data, part, rules)
    slab = np.full((len(rows) + 2, rules.row_bytes), 0xAB, np.uint8)
    image = patches_to_image(rows, part.grid or (0, 0, 0), rules)
    Patchify(rules).render(image, ImageJob(part, slab[1:-1], Context(None, 0, 0, 0, 0)))  # type: ignore[arg-type]
    np.testing.assert_array_equal(slab[1:-1], rows)
    assert (slab[[0, -1]] == 0xAB).all()


def test_pixels_that_do_not_fit_the_plan_are_a_bad_sample() -> None:
    rules = PRESETS["qwen2_vl"]
    job = ImageJob(ImagePart(name="a.jpg", grid=(1, 2, 4)), np.empty((8, 588), np.uint8), Context(None, 0, 0, 0, 0))  # type: ignore[arg-type]
    with pytest.raises(BadSample, match=r"a\.jpg.*4 x 2 patches.*promised 2 x 4"):
        Patchify(rules).render(np.zeros((56, 28, 3), np.uint8), job)
