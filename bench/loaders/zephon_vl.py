"""This library, as its README says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from bench.loaders.protocol import Delivered
from bench.work import Settings
from zephon_vl import Loader, load_recipe
from zephon_vl.recipe import Recipe

TITLE = "zephon_vl"


def grid(workers: int) -> list[dict[str, Any]]:
    return [{}]


def recipe_of(settings: Settings) -> Recipe:
    recipe = msgspec.structs.replace(load_recipe(settings.recipe), seed=settings.seed)
    packing = msgspec.structs.replace(recipe.packing, open_sequences=settings.bins)
    recipe = msgspec.structs.replace(recipe, packing=packing)
    if settings.stage == "sleep":
        use = {"use": "bench.sleeping:Sleep", "seconds": settings.sleep}
        recipe = msgspec.structs.replace(recipe, operators=(use,))
    return recipe


class Open:
    """`Loader` with its batches as the measurement takes them."""

    def __init__(self, settings: Settings, state: Any = None) -> None:
        self.loader = Loader(
            recipe_of(settings), workers=settings.workers, microbatch_size=settings.rows, prefetch=settings.prefetch
        )
        if state is not None:
            self.loader.load_state_dict(state)
        self.loader.start()

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        batch = next(self.loader)
        tensors: dict[str, torch.Tensor] = {
            "input_ids": batch.input_ids,
            "labels": batch.labels,
            "positions": batch.positions,
            "document_ids": batch.document_ids,
        }
        for name in ("mrope_positions", "pixel_patches", "grid_thw", "image_rows"):
            if (field := getattr(batch, name)) is not None:
                tensors[name] = field
        samples = sum(len(row) for row in batch.documents)
        tokens = sum(ref.stop - ref.start for row in batch.documents for ref in row)
        return Delivered(tensors, samples, tokens)

    def state(self) -> Any:
        return self.loader.state_dict()

    def close(self) -> None:
        self.loader.close()


def open(settings: Settings, state: Any = None) -> Open:
    return Open(settings, state)
