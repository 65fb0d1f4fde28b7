"""What is decided before a process starts: indexes, vocabulary, layout, buffers. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from zephon_vl.errors import RecipeError
from zephon_vl.layout import LayoutSpec
from zephon_vl.presets import VisionRules, resolve_vision
from zephon_vl.recipe import Recipe
from zephon_vl.sources.build import build_indexes
from zephon_vl.tasks import Setup
from zephon_vl.topology import Topology
from zephon_vl.vocabulary import load_vocabulary

VISION_LANGUAGE = "zephon_vl.pipelines.vision_language:pipeline"
TEXT = "zephon_vl.pipelines.text:pipeline"


def make_setup(recipe: Recipe, microbatch_size: int) -> Setup:
    """Open what a recipe names: indexes (built where missing), vocabulary, layout."""
    rules: VisionRules | None = resolve_vision(recipe.vision) if recipe.vision else None
    layouts = [
        LayoutSpec(
            rows=microbatch_size,
            seq_len=of_phase.seq_len,
            row_bytes=rules.row_bytes if rules else 0,
            merge=rules.merge if rules else 1,
            mrope=rules.mrope if rules else False,
        )
        for of_phase in recipe.of_phases()
    ]
    return Setup(
        recipe=recipe,
        vocabulary=load_vocabulary(recipe),
        sources=build_indexes(recipe),
        layouts=layouts,
        pipeline=recipe.pipeline or (VISION_LANGUAGE if rules else TEXT),
    )


def count_buffers(topologies: Sequence[Topology], size: int, prefetch: int, memory_limit: int | None) -> int:
    """Most buffers of a rank: all microbatches of a step, which a trainer may hold, the prefetch, and two in between.

    Args:
        topologies: of each phase.
        size: bytes of one buffer.
        memory_limit: bytes that all may take; None does not limit them.

    Raises:
        RecipeError: if the limit is too low to deliver a step.
    """
    per_step = max(topology.microbatches_per_step for topology in topologies)
    wanted = per_step + prefetch + 2
    if memory_limit is None:
        return wanted
    buffers, least = memory_limit // size, per_step + 1
    if buffers < least:
        raise RecipeError(
            f"memory_limit is {memory_limit} bytes, but must be at least {least * size}: a step has {per_step} "
            f"microbatches that a trainer may hold at once, one more is being filled, each may take {size} bytes. "
            "Raise memory_limit, or lower microbatch_size, seq_len or the number of sequences per rank"
        )
    return min(buffers, wanted)
