"""Vision presets: the fixed facts of a model family's image processor, and what a recipe may change in them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from zephon_vl.errors import RecipeError

if TYPE_CHECKING:
    from zephon_vl.recipe import VisionConfig

MAX_ASPECT = 200
"""`smart_resize` of Qwen2-VL refuses images whose longer side is over 200 times the shorter one."""


@dataclass(frozen=True, kw_only=True)
class VisionRules:
    """Everything that turns an image's size into a grid, and its pixels into patches."""

    preset: str
    patch: int
    """Pixels along one side of a patch."""
    merge: int
    """Patches along one side of the square that becomes one image token."""
    temporal_patch: int
    """Frames of a patch; a still is repeated this often on the device."""
    layout: Literal["block", "raster"]
    """Order of the patches: merge blocks one after the other (Qwen), or row by row (Kimi)."""
    resize: Literal["smart", "navit"]
    """`smart`: Qwen2-VL's `smart_resize`. `navit`: Kimi's, which never enlarges, and pads to whole tokens."""
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    mrope: bool
    """Whether the language model takes three-axis positions."""
    image_token: str
    video_token: str
    vision_start_token: str
    vision_end_token: str
    max_side_patches: int = 0
    """`navit` only: most patches along one side."""

    @property
    def factor(self) -> int:
        """Pixels along one side of an image token."""
        return self.patch * self.merge

    @property
    def pixels_per_token(self) -> int:
        return self.factor**2

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored patch: channel-last uint8, a still once."""
        return self.patch * self.patch * 3

    @property
    def min_tokens(self) -> int:
        """Tokens of the smallest image."""
        if self.resize == "navit":
            return 1
        return max(1, self.min_pixels // self.pixels_per_token)

    @property
    def max_tokens(self) -> int:
        """Most tokens of one image. A strip is never thinner than one token, so at extreme aspects its length decides:
        `smart_resize` makes it floor(sqrt(max_pixels * aspect) / factor) long."""
        square = self.max_pixels // self.pixels_per_token
        if self.resize == "navit":
            return self.max_pixels // self.pixels_per_token * 2 + 2 * self.max_side_patches
        return max(square, math.floor(math.sqrt(self.max_pixels * MAX_ASPECT) / self.factor))


_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)

_QWEN2_VL = VisionRules(
    preset="qwen2_vl",
    patch=14,
    merge=2,
    temporal_patch=2,
    layout="block",
    resize="smart",
    min_pixels=56 * 56,
    max_pixels=28 * 28 * 1280,
    mean=_CLIP_MEAN,
    std=_CLIP_STD,
    mrope=True,
    image_token="<|image_pad|>",
    video_token="<|video_pad|>",
    vision_start_token="<|vision_start|>",
    vision_end_token="<|vision_end|>",
)
_QWEN3_VL = dataclasses.replace(
    _QWEN2_VL, preset="qwen3_vl", patch=16, min_pixels=65536, max_pixels=16777216, mean=_HALF, std=_HALF
)

PRESETS: dict[str, VisionRules] = {
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": dataclasses.replace(_QWEN2_VL, preset="qwen2_5_vl"),
    "qwen3_vl": _QWEN3_VL,
    "qwen3_5": dataclasses.replace(_QWEN3_VL, preset="qwen3_5"),
}


def resolve_vision(config: VisionConfig) -> VisionRules:
    """The preset with the recipe's changes. Raises `RecipeError` for an unknown preset or impossible limits."""
    base = PRESETS.get(config.preset)
    if base is None:
        raise RecipeError(f"vision.preset is {config.preset!r}, but must be one of {', '.join(sorted(PRESETS))}")
    changes = {
        name: value
        for name in (
            "min_pixels",
            "max_pixels",
            "image_token",
            "video_token",
            "vision_start_token",
            "vision_end_token",
        )
        if (value := getattr(config, name)) is not None
    }
    rules = dataclasses.replace(base, **changes)
    if not rules.pixels_per_token <= rules.max_pixels:
        raise RecipeError(
            f"vision.max_pixels is {rules.max_pixels}, but must be at least {rules.pixels_per_token}: one image token "
            f"of preset {config.preset!r}"
        )
    if rules.min_pixels > rules.max_pixels:
        raise RecipeError(
            f"vision.min_pixels is {rules.min_pixels}, over vision.max_pixels, {rules.max_pixels}; "
            "lower the one or raise the other"
        )
    return rules
