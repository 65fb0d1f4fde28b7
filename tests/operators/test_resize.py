"""Sizes equal transformers' own functions for any image, and the token bounds of the presets hold."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from vision_chain import encode, picture

from zephon_vl.errors import BadSample, RecipeError
from zephon_vl.operators.resize import resize_size
from zephon_vl.presets import PRESETS, VisionRules, resolve_vision
from zephon_vl.recipe import VisionConfig

SMART = [name for name, rules in PRESETS.items() if rules.resize == "smart"]
sides = st.one_of(st.integers(1, 200), st.integers(1, 4000), st.integers(1, 1_000_000))


def navit_resize() -> Callable[..., Any]:
    """The function of transformers' Kimi processor, whose module needs torchvision to import."""
    package = importlib.util.find_spec("transformers")
    assert package is not None and package.origin is not None
    source = (Path(package.origin).parent / "models/kimi_k25/image_processing_kimi_k25.py").read_text()
    function = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "navit_resize")
    names: dict[str, Any] = {"math": math}
    exec(compile(ast.Module([function], []), "navit_resize", "exec"), names)
    return names["navit_resize"]


NAVIT_RESIZE = navit_resize()


@st.composite
def limits(draw: st.DrawFn, resize: str) -> VisionRules:
    """A preset, as it is or with other pixel limits."""
    rules = draw(st.sampled_from([rules for rules in PRESETS.values() if rules.resize == resize]))
    if draw(st.booleans()):
        return rules
    most = draw(st.integers(rules.pixels_per_token, rules.pixels_per_token * draw(st.sampled_from((3, 100, 5000)))))
    return replace(rules, max_pixels=most, min_pixels=0 if resize == "navit" else draw(st.integers(1, most)))


@given(sides, sides, limits("smart"))
@example(1, 1, PRESETS["qwen2_vl"])
@example(199, 1, PRESETS["qwen3_vl"])
@example(200, 1, PRESETS["qwen3_vl"])
@example(1, 201, PRESETS["qwen3_vl"])
def test_smart_resize_and_its_bounds(width: int, height: int, rules: VisionRules) -> None:
    try:
        h, w = smart_resize(height, width, rules.factor, rules.min_pixels, rules.max_pixels)
    except ValueError:
        with pytest.raises(BadSample, match="over 200 times"):
            resize_size((width, height), rules)
        return
    assert resize_size((width, height), rules) == ((w, h), (w, h))
    assert rules.min_tokens <= w * h // rules.pixels_per_token <= rules.max_tokens


@given(sides, sides, limits("navit"))
@example(1, 1, PRESETS["kimi_k2_5"])
@example(1, 1_000_000, PRESETS["kimi_k2_5"])
def test_navit_resize_and_its_bounds(width: int, height: int, rules: VisionRules) -> None:
    patches = rules.max_pixels // rules.patch**2
    (h, w), (padded_h, padded_w) = NAVIT_RESIZE(
        height, width, rules.patch, rules.merge, patches, rules.max_side_patches
    )
    assert resize_size((width, height), rules) == ((w, h), (padded_w, padded_h))
    assert rules.min_tokens <= padded_w * padded_h // rules.pixels_per_token <= rules.max_tokens


@pytest.mark.parametrize("preset", SMART)
@pytest.mark.parametrize("tokens", [1, 4, 16, 256])
def test_the_bounds_hold_on_every_aspect_at_small_limits(preset: str, tokens: int) -> None:
    """Where rounding to whole tokens matters most; sizes dense around every aspect up to the limit of 200."""
    full = PRESETS[preset]
    rules = replace(full, min_pixels=tokens * full.pixels_per_token, max_pixels=tokens * full.pixels_per_token)
    found = []
    for short in (1, 7, 33, 100, 701):
        for long in np.unique(np.geomspace(short, short * 200, 400).astype(int)).tolist():
            target, _ = resize_size((long, short), rules)
            found.append(target[0] * target[1] // rules.pixels_per_token)
    assert rules.min_tokens <= min(found)
    assert max(found) <= rules.max_tokens <= max(found) * 1.3 + 3, "the bound is of some use"


@given(limits("smart"), st.integers(1, 3000))
def test_max_pixels_for_keeps_every_image_within_the_tokens(rules: VisionRules, tokens: int) -> None:
    most = rules.max_pixels_for(tokens)
    if most is None:
        lowest = max(rules.min_pixels, rules.pixels_per_token)
        assert replace(rules, max_pixels=lowest).max_tokens > tokens
    else:
        assert replace(rules, max_pixels=most).max_tokens <= tokens < replace(rules, max_pixels=most + 1).max_tokens


def test_zero_sides_are_bad() -> None:
    for preset in PRESETS.values():
        with pytest.raises(BadSample, match="0 x 5"):
            resize_size((0, 5), preset)


def test_kimi_pads_with_black_to_the_right_and_below() -> None:
    image = picture(encode(Image.new("RGB", (30, 20), (9, 8, 7)), "PNG"), PRESETS["kimi_k2_5"])
    assert image.shape == (28, 56, 3)
    assert (image[:20, :30] == (9, 8, 7)).all()
    assert not image[20:].any() and not image[:, 30:].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "qwen9"}, "'qwen9'.*must be one of kimi_k2_5"),
        ({"preset": "qwen2_vl", "max_pixels": 783}, "vision.max_pixels is 783.*at least 784"),
        ({"preset": "qwen2_vl", "min_pixels": 9000, "max_pixels": 8000}, "vision.min_pixels is 9000.*8000"),
        ({"preset": "qwen2_vl", "min_pixels": 0}, "vision.min_pixels is 0.*at least 1"),
        ({"preset": "kimi_k2_5", "min_pixels": 100}, "never enlarges"),
    ],
)
def test_impossible_rules_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        resolve_vision(VisionConfig(**changes))
