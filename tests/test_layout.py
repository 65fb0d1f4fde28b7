"""Fields of a slab never touch each other, and hold whatever can be packed."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_vl.layout import BatchLayout, LayoutSpec

specs = st.builds(
    LayoutSpec,
    rows=st.integers(1, 5),
    seq_len=st.integers(1, 300),
    row_bytes=st.sampled_from([0, 588, 768]),
    merge=st.sampled_from([1, 2]),
    mrope=st.booleans(),
)


@settings(deadline=None)
@given(spec=specs)
def test_fields_are_aligned_apart_and_inside(spec: LayoutSpec) -> None:
    layout = BatchLayout(spec)
    slab = np.zeros(layout.size, np.uint8)
    views = layout.views(slab)
    for number, view in enumerate(views.values(), 1):
        assert not slab[layout.fields[list(views)[number - 1]].offset :][: view.nbytes].any(), "nobody else wrote here"
        view.view(np.uint8)[...] = number
    assert all((view.view(np.uint8) == number).all() for number, view in enumerate(views.values(), 1))
    for name, field in layout.fields.items():
        assert field.offset % 64 == 0, name
        assert field.offset + views[name].nbytes <= layout.size
        assert views[name].flags.c_contiguous and np.shares_memory(views[name], slab)
    assert layout.size % 4096 == 0


@given(spec=specs)
def test_fields_follow_the_recipe(spec: LayoutSpec) -> None:
    layout = BatchLayout(spec)
    text = {"input_ids", "labels", "positions", "document_ids"}
    images = {"grid_thw", "image_rows", "pixel_patches"} if spec.row_bytes else set()
    assert set(layout.fields) == text | images | ({"mrope_positions"} if spec.mrope else set())
    shapes = {name: field.shape for name, field in layout.fields.items()}
    assert all(shapes[name] == (spec.rows, spec.seq_len) for name in text)
    if spec.row_bytes:
        tokens = spec.rows * spec.seq_len
        assert shapes["pixel_patches"] == (tokens * spec.merge**2, spec.row_bytes), "even if every token is an image's"
        assert shapes["grid_thw"] == (tokens, 3)
        assert layout.fields["pixel_patches"].offset % 4096 == 0


def test_every_process_computes_the_same_layout() -> None:
    spec = LayoutSpec(rows=2, seq_len=100, row_bytes=768, merge=2, mrope=True)
    assert BatchLayout(spec).fields == BatchLayout(LayoutSpec(2, 100, 768, 2, True)).fields
