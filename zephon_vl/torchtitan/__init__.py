"""Trains TorchTitan's models on a recipe: the same global batches on any number of ranks, saved and resumed with the
model.

    from zephon_vl.torchtitan import ZephonVLDataLoader

    config.dataloader = ZephonVLDataLoader.Config(recipe="recipe.toml")

docs/torchtitan.md has the whole page. Needs the extra `torchtitan`.
"""

from zephon_vl.torchtitan.loader import ZephonVLDataLoader
from zephon_vl.torchtitan.metrics import ZephonVLMetrics

__all__ = ["ZephonVLDataLoader", "ZephonVLMetrics"]
