"""Imports what every rank needs, in the process that ranks are forked from."""

import torchtitan.models.llama3
import torchtitan.models.qwen3_5
import torchtitan.train

import torchtitan_demo.observe
import zephon_vl.torchtitan.config_registry  # noqa: F401
