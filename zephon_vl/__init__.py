"""Vision-language training data whose global batches are identical, to the byte, on any number of GPUs.

    from zephon_vl import Loader

    with Loader("recipe.toml", dp_rank=rank, dp_size=world) as loader:
        for batch in loader:
            ...

Names are imported when first used: workers are light processes that must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zephon_vl.batch import Batch
    from zephon_vl.contracts import Context, ImageJob, ImagePart, Message, Operator, Sample, TextPart
    from zephon_vl.errors import BadSample, RecipeError, SourceError, StateError, StorageError, ZephonError
    from zephon_vl.loader import Loader
    from zephon_vl.recipe import (
        PackingConfig,
        PhaseConfig,
        Recipe,
        SourceConfig,
        TokenizerConfig,
        VisionConfig,
        load_recipe,
    )

__version__ = "0.1.0"

_HOMES = {
    "zephon_vl.batch": ("Batch",),
    "zephon_vl.contracts": ("Context", "ImageJob", "ImagePart", "Message", "Operator", "Sample", "TextPart"),
    "zephon_vl.errors": ("BadSample", "RecipeError", "SourceError", "StateError", "StorageError", "ZephonError"),
    "zephon_vl.loader": ("Loader",),
    "zephon_vl.recipe": (
        "PackingConfig",
        "PhaseConfig",
        "Recipe",
        "SourceConfig",
        "TokenizerConfig",
        "VisionConfig",
        "load_recipe",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Batch",
    "BadSample",
    "Context",
    "ImageJob",
    "ImagePart",
    "Loader",
    "Message",
    "Operator",
    "PackingConfig",
    "PhaseConfig",
    "Recipe",
    "RecipeError",
    "Sample",
    "SourceConfig",
    "SourceError",
    "StateError",
    "StorageError",
    "TextPart",
    "TokenizerConfig",
    "VisionConfig",
    "ZephonError",
    "load_recipe",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'zephon_vl' has no attribute {name!r}")
