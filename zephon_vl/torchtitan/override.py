"""Swaps the loader of any TorchTitan config from the command line.

--override.imports 'zephon_vl.torchtitan.override.loader={"recipe": "recipe.toml"}'
"""

from __future__ import annotations

from typing import Any

from torchtitan.config.override import derive, override

from zephon_vl.torchtitan.interfaces import BaseDataLoader
from zephon_vl.torchtitan.loader import ZephonVLDataLoader
from zephon_vl.torchtitan.metrics import MetricsProcessor, ZephonVLMetrics


@override(target=BaseDataLoader.Config, fqns=["dataloader"], description="global batches of a zephon-vl recipe")
def loader(config: BaseDataLoader.Config, **fields: Any) -> ZephonVLDataLoader.Config:
    """The training loader. `fields` are those of `ZephonVLDataLoader.Config`."""
    return ZephonVLDataLoader.Config(**fields)


@override(target=BaseDataLoader.Config, fqns=["validator.dataloader"], description="a zephon-vl recipe to validate on")
def validation_loader(config: BaseDataLoader.Config, **fields: Any) -> ZephonVLDataLoader.Config:
    """The validation loader. `fields` are those of `ZephonVLDataLoader.Config`."""
    return ZephonVLDataLoader.Config(**fields)


@override(target=MetricsProcessor.Config, fqns=["metrics"], description="metrics of the zephon-vl loader")
def metrics(config: MetricsProcessor.Config, **fields: Any) -> ZephonVLMetrics.Config:
    """The loader's metrics beside TorchTitan's, whose settings are kept."""
    return derive(config, ZephonVLMetrics.Config, **fields)
