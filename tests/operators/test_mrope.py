"""Positions equal those of the models themselves, document by document."""

from __future__ import annotations

from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from zephon_vl.operators.mrope import mrope_positions

Grid = tuple[int, int, int]
grids = st.builds(lambda h, w: (1, 2 * h, 2 * w), st.integers(1, 20), st.integers(1, 20))
documents = st.tuples(st.integers(0, 30), st.lists(st.tuples(grids, st.integers(1, 40)), max_size=6))
"""Text before, then images each followed by text, as they always are: by their closing delimiter at least."""


@pytest.mark.parametrize("model", [Qwen2VLModel, Qwen2_5_VLModel, Qwen3VLModel, Qwen3_5Model])
@given(document=documents)
def test_equals_get_rope_index(model: type, document: tuple[int, list[tuple[Grid, int]]]) -> None:
    kinds, images = [0] * document[0], []
    for grid, text in document[1]:
        images.append((len(kinds), grid))
        kinds += [1] * (grid[1] * grid[2] // 4) + [0] * text
    if not kinds:
        kinds = [0]
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    itself = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    itself.get_vision_position_ids = MethodType(model.get_vision_position_ids, itself)
    expected, _ = model.get_rope_index(
        itself,
        input_ids=torch.zeros(1, len(kinds), dtype=torch.int64),
        mm_token_type_ids=torch.tensor([kinds]),
        image_grid_thw=torch.tensor([grid for _, grid in images]) if images else None,
    )
    np.testing.assert_array_equal(mrope_positions(len(kinds), images, 2), expected[:, 0].T)


def test_writes_to_a_place_of_another_type() -> None:
    out = np.full((12, 3), -1, np.int32)
    result = mrope_positions(10, [(2, (1, 4, 4))], 2, out[1:11])
    np.testing.assert_array_equal(result[:7], [[0] * 3, [1] * 3, [2, 2, 2], [2, 2, 3], [2, 3, 2], [2, 3, 3], [4] * 3])
    assert (out[[0, 11]] == -1).all()


def test_frames_count_on_along_time() -> None:
    positions = mrope_positions(3, [(0, (2, 2, 2))], 2)
    np.testing.assert_array_equal(positions, [[0, 0, 0], [1, 0, 0], [1, 1, 1]])
