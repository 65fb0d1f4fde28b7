"""The work of one sample, the same for every loader: a JPEG and a caption become token ids and patches.

Table "same": the functions of this library's own operators, so that only the loaders differ. Table "box": what a user
of the other loaders writes: Pillow, or the image processor of transformers. "sleep" stands for a decoder of a fixed
time and "text" for a document without a picture.
"""

from __future__ import annotations

import functools
import io
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zephon_vl.contracts import Chain, Context
    from zephon_vl.presets import VisionRules
    from zephon_vl.recipe import Recipe

Stage = Literal["same", "pillow", "hf", "sleep", "text"]
Sample = dict[str, "NDArray[Any]"]
"""`input_ids`, `labels` (n,) int64; with a picture `mrope_positions` (n, 3) int64, `grid_thw` (1, 3) int64,
`pixel_patches` (p, 768) uint8, or with stage "hf" `pixel_values` (p, 1536) float32."""

PIXELS = ("pixel_patches", "pixel_values", "grid_thw")
"""Fields that are of the images, not of the tokens."""
IGNORE = -100


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What one measurement is of. Everything that a loader is opened with."""

    data: str
    """Directory of a corpus of `corpus.py`."""
    stage: Stage = "same"
    workers: int = 2
    rows: int = 2
    """Packed sequences of a batch."""
    bins: int = 8
    """Sequences that packing keeps open."""
    prefetch: int = 4
    """Batches to have ready over all workers."""
    settle: int = 0
    """Batches that are taken before the window, at least; where work is slow, the rate until then is of a loader that
    fills its open sequences."""
    seed: int = 0
    sleep: float = 0.005
    """Seconds of stage "sleep"."""
    tuning: dict[str, Any] = {}
    """A loader's own settings, one of its `GRID`."""

    @property
    def root(self) -> Path:
        return Path(self.data)

    @property
    def recipe(self) -> Path:
        return self.root / {"text": "text.toml", "sleep": "sleep.toml"}.get(self.stage, "recipe.toml")

    @property
    def vision(self) -> bool:
        return self.stage in ("same", "pillow", "hf")

    @property
    def per_worker(self) -> int:
        """Batches that each worker has ready."""
        return max(1, self.prefetch // max(1, self.workers))

    def process(self, data: bytes, caption: str) -> Sample:
        """The work itself; everything it needs is made at the first call in a process."""
        return process(self, data, caption)


def process(settings: Settings, data: bytes, caption: str) -> Sample:
    """One sample of `settings.stage`, from the bytes of its picture (unused where there is none) and its text."""
    tools = _tools(settings.recipe)
    match settings.stage:
        case "same":
            return tools.same(data, caption)
        case "pillow":
            return tools.pillow(data, caption)
        case "hf":
            return tools.hf(data, caption)
        case "sleep":
            time.sleep(settings.sleep)
    return tools.text(caption)


class _Tools:
    """What a process needs for the work: tokenizer, rules, operators."""

    def __init__(self, recipe: Path) -> None:
        from zephon_vl.contracts import Vocabulary
        from zephon_vl.presets import resolve_vision
        from zephon_vl.recipe import load_recipe

        self.recipe: Recipe = load_recipe(recipe)
        # Made with the corpus: reading a few ids from it costs a process nothing, as a user's own code would.
        self.vocabulary = msgspec.json.decode(recipe.with_suffix(".vocabulary.json").read_bytes(), type=Vocabulary)
        self.rules: VisionRules | None = resolve_vision(self.recipe.vision) if self.recipe.vision else None

    @functools.cached_property
    def chain(self) -> Chain:
        from zephon_vl.pipelines.vision_language import pipeline

        return pipeline.chain(self.recipe, self.recipe.sources[0], self.vocabulary)

    @functools.cached_property
    def context(self) -> Context:
        from zephon_vl.contracts import Context

        nowhere: Any = None  # the bytes are in the part
        return Context(source=nowhere, seed=0, source_index=0, epoch=0, index=0)

    def same(self, data: bytes, caption: str) -> Sample:
        from zephon_vl import contracts

        assert self.rules is not None
        part = contracts.ImagePart(data=data)
        sample: Any = contracts.Sample(key="", shard="", parts=[part, contracts.TextPart(caption)])
        for operator in self.chain.measure:
            sample = operator.measure(sample, self.context)
        assert part.grid is not None
        out = np.empty((part.grid[1] * part.grid[2], self.rules.row_bytes), np.uint8)
        self.render(data, part, out)
        return self._tokens(sample.tokens, sample.image_offsets[0], part.grid) | {"pixel_patches": out}

    def measured(self, data: bytes, caption: str) -> NDArray[np.int64]:
        """Token ids alone: nothing is decoded."""
        from zephon_vl import contracts

        parts: list[contracts.Part] = [contracts.ImagePart(data=data), contracts.TextPart(caption)]
        sample: Any = contracts.Sample(key="", shard="", parts=parts)
        for operator in self.chain.measure:
            sample = operator.measure(sample, self.context)
        return np.maximum(sample.tokens, ~sample.tokens).astype(np.int64)

    def render(self, data: bytes, part: Any, out: NDArray[np.uint8]) -> None:
        from zephon_vl.contracts import ImageJob

        job, pixels = ImageJob(part, out, self.context), data
        for operator in self.chain.render:
            pixels = operator.render(pixels, job)

    def pillow(self, data: bytes, caption: str) -> Sample:
        from PIL import Image

        from zephon_vl.operators.resize import resize_size

        assert self.rules is not None
        image = Image.open(io.BytesIO(data)).convert("RGB")
        size, _ = resize_size(image.size, self.rules)
        pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
        patch, merge = self.rules.patch, self.rules.merge
        h, w = size[1] // patch, size[0] // patch
        blocks = pixels.reshape(h // merge, merge, patch, w // merge, merge, patch, 3).transpose(0, 3, 1, 4, 2, 5, 6)
        grid = (1, h, w)
        return self._encode(caption, grid) | {"pixel_patches": blocks.reshape(h * w, patch * patch * 3)}

    @functools.cached_property
    def processor(self) -> Any:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        rules = self.rules
        assert rules is not None
        return Qwen2VLImageProcessorPil(
            size={"shortest_edge": rules.min_pixels, "longest_edge": rules.max_pixels},
            patch_size=rules.patch,
            merge_size=rules.merge,
            temporal_patch_size=rules.temporal_patch,
            image_mean=list(rules.mean),
            image_std=list(rules.std),
        )

    def hf(self, data: bytes, caption: str) -> Sample:
        from PIL import Image

        made = self.processor(images=[Image.open(io.BytesIO(data)).convert("RGB")], return_tensors="np")
        grid = tuple(int(side) for side in made["image_grid_thw"][0])
        return self._encode(caption, (1, grid[1], grid[2])) | {"pixel_values": made["pixel_values"]}

    @functools.cached_property
    def tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(self.vocabulary.tokenizer_json)

    def text(self, text: str) -> Sample:
        # The batch call is the fastest one: it keeps no offsets.
        encoding = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        ids = np.array([*encoding.ids, self.vocabulary.eos], np.int64)
        return {"input_ids": ids, "labels": np.append(ids[1:], IGNORE)}

    def _encode(self, caption: str, grid: tuple[int, int, int]) -> Sample:
        """As a user writes it: the picture between its delimiters, the caption, the end."""
        assert self.rules is not None
        v = self.vocabulary
        count = grid[1] * grid[2] // self.rules.merge**2
        text = self.tokenizer.encode(caption, add_special_tokens=False).ids
        picture = [~v.vision_start, *[~v.image] * count, ~v.vision_end]
        return self._tokens(np.array([*picture, *text, v.eos], np.int32), 1, grid)

    def _tokens(self, coded: NDArray[np.int32], offset: int, grid: tuple[int, int, int]) -> Sample:
        """`coded`: `~id` where a token is not trained on."""
        from zephon_vl.operators.mrope import mrope_positions

        assert self.rules is not None
        labels = np.append(coded[1:], IGNORE).astype(np.int64)
        labels[labels < 0] = IGNORE
        return {
            "input_ids": np.maximum(coded, ~coded).astype(np.int64),
            "labels": labels,
            "mrope_positions": mrope_positions(len(coded), [(offset, grid)], self.rules.merge),
            "grid_thw": np.array([grid], np.int64),
        }


@functools.cache
def _tools(recipe: Path) -> _Tools:
    return _Tools(recipe)


def tools(settings: Settings) -> _Tools:
    """The tools of this process."""
    return _tools(settings.recipe)
