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
        """A lower bound of the tokens of one image, over all sizes."""
        if self.resize == "navit":
            return 1
        enlarged = math.ceil(self.min_pixels / self.pixels_per_token * (1 - _ROUNDING))
        return max(1, min(enlarged, self._fewest_when_reduced()))

    @property
    def max_tokens(self) -> int:
        """An upper bound of the tokens of one image, over all sizes. It can exceed `max_pixels / pixels_per_token`: a
        strip is never thinner than one token, so at extreme aspects its length decides."""
        if self.resize == "navit":
            return self._most_when_padded()
        square = self.max_pixels // self.pixels_per_token
        strip = math.floor(math.sqrt(self.max_pixels * MAX_ASPECT) / self.factor * (1 + _ROUNDING))
        return max(square, strip, self._most_when_enlarged())

    def max_pixels_for(self, tokens: int) -> int | None:
        """The largest `max_pixels` with which every image takes at most `tokens`; None if no value does, because of
        `min_pixels` (`smart`) or because thin strips always may have the longest side (`navit`)."""
        low = max(self.min_pixels, self.pixels_per_token)
        high = max(low, (tokens + 1) * self.pixels_per_token)
        if dataclasses.replace(self, max_pixels=low).max_tokens > tokens:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if dataclasses.replace(self, max_pixels=middle).max_tokens <= tokens:
                low = middle
            else:
                high = middle - 1
        return low

    def _most_when_enlarged(self) -> int:
        """`smart_resize` below `min_pixels`: both sides, in tokens, are rounded up from x and y with x * y = area. For
        a short side rounded up to `short`, the long one is longest where x is just over short - 1, or at the
        greatest aspect."""
        area = self.min_pixels / self.pixels_per_token
        thinnest = math.sqrt(area / MAX_ASPECT)
        most = 0
        for short in range(math.ceil(thinnest), math.isqrt(math.floor(area)) + 2):
            long = area / max(short - 1, thinnest)
            most = max(most, short * (math.floor(long * (1 + _ROUNDING)) + 1))
        return most

    def _fewest_when_reduced(self) -> int:
        """`smart_resize` above `max_pixels`: both sides are rounded down from x and y with x * y = area."""
        area = self.max_pixels / self.pixels_per_token
        root = math.sqrt(area)
        return min(
            short * max(1, math.floor(max(area / (short + 1), root) * (1 - _ROUNDING)))
            for short in range(1, math.floor(root) + 1)
        )

    def _most_when_padded(self) -> int:
        """`navit_resize` counts whole patches, so the part of a patch over them comes on top of its limit; then both
        sides are padded up to whole tokens."""
        limit = self.max_pixels // self.patch**2
        longest = -(-self.max_side_patches // self.merge)

        def fits(rows: int, columns: int) -> bool:
            if rows == 1:
                return True  # a side of less than a patch counts as a whole one, so the other is only held by its limit
            # Sides, in whole patches, that the image has at least when it needs this many tokens.
            h, w = (rows - 1) * self.merge, (columns - 1) * self.merge
            over = (1 + 1 / max(1, h)) * (1 + 1 / max(1, w))
            return h * w <= limit * over * (1 + _ROUNDING)

        most, columns = 0, longest
        for rows in range(1, longest + 1):
            while columns > 0 and not fits(rows, columns):
                columns -= 1
            most = max(most, rows * columns)
        return most


_ROUNDING = 1e-9
"""The references compute in float64: what is a whole number in theory may come out just beside it."""

# Where the constants are from. transformers 5.24: qwen2_vl and qwen2_5_vl, the defaults of `Qwen2VLImageProcessorPil`
# (which `image_processing_auto` maps all four Qwen families to); Qwen tokens, the processors; kimi_k2_5,
# `Kimi_K25ImageProcessor`. TorchTitan 0.3.0: pixel limits, mean and std of qwen3_vl and qwen3_5,
# `qwen3_5/config_registry.py`; tokens of kimi_*, `kimi_k2_7/__init__.py`; limits and start token of kimi_vl,
# `kimi_k2_7/config_registry.py`; muse_glimmer, `muse_glimmer/config_registry.py` (its debug flavour, the only one with
# images: raise `max_pixels`).
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

_KIMI_K2_5 = VisionRules(
    preset="kimi_k2_5",
    patch=14,
    merge=2,
    temporal_patch=1,
    layout="raster",
    resize="navit",
    min_pixels=0,
    max_pixels=16384 * 14 * 14,
    max_side_patches=512,
    mean=_HALF,
    std=_HALF,
    mrope=False,
    image_token="<|media_pad|>",
    video_token="<|media_pad|>",
    vision_start_token="<|media_begin|>",
    vision_end_token="<|media_end|>",
)
_MUSE_GLIMMER = dataclasses.replace(
    _QWEN2_VL,
    preset="muse_glimmer",
    layout="raster",
    min_pixels=784,
    max_pixels=3136,
    mean=_HALF,
    std=_HALF,
    mrope=False,
)

PRESETS: dict[str, VisionRules] = {
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": dataclasses.replace(_QWEN2_VL, preset="qwen2_5_vl"),
    "qwen3_vl": _QWEN3_VL,
    "qwen3_5": dataclasses.replace(_QWEN3_VL, preset="qwen3_5"),
    "kimi_k2_5": _KIMI_K2_5,
    "kimi_vl": dataclasses.replace(_KIMI_K2_5, preset="kimi_vl", vision_start_token="<|media_start|>"),
    "muse_glimmer": _MUSE_GLIMMER,
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
    if base.resize == "navit" and config.min_pixels is not None:
        raise RecipeError(
            f"vision.min_pixels is {config.min_pixels}, but preset {config.preset!r} never enlarges an image; remove it"
        )
    if config.min_pixels is not None and config.min_pixels < 1:
        raise RecipeError(f"vision.min_pixels is {config.min_pixels}, but must be at least 1")
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
