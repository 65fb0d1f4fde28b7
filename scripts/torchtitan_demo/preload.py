"""Imports what every rank needs, in the process that ranks are forked from."""

from importlib import import_module

from torchtitan_demo import cpu

cpu.prepare()
for name in (
    "torchtitan.train",
    "torchtitan.models.llama3",
    "torchtitan.models.qwen3_5",
    "torchtitan_demo.observe",
    "zephon_vl.torchtitan.config_registry",
):
    import_module(name)
