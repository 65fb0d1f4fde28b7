"""TorchTitan's own `MMDataLoader`, as its VLM configurations use it: `datasets` streams the tars, packing on.

It brings its own work (decoding by Pillow through `datasets`, resizing by torchvision, float32), so it stands only in
the table of what users get.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch

from bench.corpus_paths import SEQ_LEN
from bench.loaders.protocol import Delivered
from bench.work import Settings, tools

TITLE = "TorchTitan"


def grid(workers: int) -> list[dict[str, Any]]:
    return [{}]


_COMPILED = ("nms", "qnms", "roi_align", "qroi_align", "_roi_align_backward", "ps_roi_align", "roi_pool", "ps_roi_pool")
_COMPILED += ("_ps_roi_align_backward", "_roi_pool_backward", "_ps_roi_pool_backward")
_COMPILED += ("deform_conv2d", "_deform_conv2d_backward")
_libraries: list[Any] = []


def _import_torchvision() -> None:
    """A torchvision whose compiled part does not fit this torch still resizes, which is all that is wanted of it; but
    to be imported, the operators that it has Python parts for must exist."""
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in _COMPILED:
            library.define(f"{name}(Tensor x) -> Tensor")
        _libraries.append(library)
    importlib.import_module("torchvision")


class Open:
    """An MMDataLoader."""

    def __init__(self, settings: Settings) -> None:
        _import_torchvision()
        from torchtitan.components.tokenizer import MultiModalTokenizer  # pyright: ignore[reportMissingImports]
        from torchtitan.hf_datasets.multimodal.mm_datasets import MMDataLoader  # pyright: ignore[reportMissingImports]

        rules = tools(settings).rules
        assert rules is not None
        tokens = {
            "image_token": rules.image_token,
            "video_token": rules.video_token,
            "vision_start_token": rules.vision_start_token,
            "vision_end_token": rules.vision_end_token,
            "pad_token": "<|endoftext|>",
        }
        tokenizer = MultiModalTokenizer.Config(**tokens).build(tokenizer_path=str(settings.root / "tokenizer"))
        config = MMDataLoader.Config(
            dataset="cc12m-test",
            dataset_path=str(settings.root / "tar"),
            num_workers=settings.workers,
            prefetch_factor=settings.per_worker,
            packing_buffer_size=100,
            max_images_per_batch=1024,
            patch_size=rules.patch,
            temporal_patch_size=rules.temporal_patch,
            spatial_merge_size=rules.merge,
            min_pixels=rules.min_pixels,
            max_pixels=rules.max_pixels,
            image_mean=rules.mean,
            image_std=rules.std,
            build_mrope_positions=True,
        )
        self.loader = MMDataLoader(
            config,
            dp_world_size=1,
            dp_rank=0,
            tokenizer=tokenizer,
            seq_len=SEQ_LEN,
            local_batch_size=settings.rows,
        )
        self.batches = iter(self.loader)

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        inputs, labels = next(self.batches)
        tensors = {name: field for name, field in inputs.items() if isinstance(field, torch.Tensor)}
        return Delivered(tensors | {"labels": labels}, len(tensors["grid_thw"]))

    def close(self) -> None:
        del self.batches


def open(settings: Settings) -> Open:
    return Open(settings)
