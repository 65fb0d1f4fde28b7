"""Sample configs, each a few lines over TorchTitan's own.

python -m torchtitan.train --module zephon_vl.torchtitan --config qwen35_tiny --dataloader.recipe recipe.toml ...
"""

from __future__ import annotations

from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import HuggingFaceTokenizer, MultiModalTokenizer
from torchtitan.config import TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

from zephon_vl.torchtitan.loader import ZephonVLDataLoader
from zephon_vl.torchtitan.metrics import ZephonVLMetrics

TINY_VOCABULARY = 8192
"""Room for the vocabulary of `make_sample_data.py --tokenizer tiny`."""


def qwen35_tiny() -> Trainer.Config:
    """A VLM in the style of Qwen3.5 that trains on a CPU: a Gated DeltaNet layer and one with full attention."""
    from torchtitan.models.qwen3_5 import QWEN3_5_SPECIAL_TOKENS, model_registry

    spec = model_registry("debugmodel")
    model = spec.model
    model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = TINY_VOCABULARY
    model.layers = [model.layers[0], model.layers[3]]
    model.vision_encoder.num_layers = 1
    config = _tiny(spec, "sample_data/tiny.toml")
    config.tokenizer = MultiModalTokenizer.Config(**QWEN3_5_SPECIAL_TOKENS)
    return config


def llama3_tiny() -> Trainer.Config:
    """A text model that trains on a CPU."""
    from torchtitan.models.llama3 import model_registry

    spec = model_registry("debugmodel")
    model = spec.model
    model.vocab_size = model.tok_embeddings.num_embeddings = model.lm_head.out_features = TINY_VOCABULARY
    model.layers = model.layers[:2]
    return _tiny(spec, "sample_data/tiny_text.toml")


def qwen35_sample() -> Trainer.Config:
    """Qwen3.5 0.8B on the sample corpus of `make_sample_data.py`, for real GPUs; needs `flash-linear-attention`."""
    from torchtitan.models.qwen3_5 import QWEN3_5_SPECIAL_TOKENS, model_registry

    return Trainer.Config(
        loss=CrossEntropyLoss.Config(),
        hf_assets_path="sample_data/tokenizer",
        tokenizer=MultiModalTokenizer.Config(**QWEN3_5_SPECIAL_TOKENS),
        metrics=ZephonVLMetrics.Config(log_freq=1),
        model_spec=model_registry("0.8B"),
        dataloader=ZephonVLDataLoader.Config(recipe="sample_data/recipe.toml", workers=8),
        optimizer=default_adamw(lr=2e-5),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=10),
        training=TrainingConfig(
            seq_len=2048, local_batch_size=1, global_batch_size=32, steps=100, disable_cuda_graphs=True
        ),
        checkpoint=CheckpointManager.Config(enable=True, interval=50, last_save_model_only=False),
        activation_checkpoint=FullAC.Config(),
    )


def _tiny(spec: ModelSpec, recipe: str) -> Trainer.Config:
    return Trainer.Config(
        loss=CrossEntropyLoss.Config(),
        hf_assets_path="sample_data/tokenizer",
        tokenizer=HuggingFaceTokenizer.Config(),
        metrics=ZephonVLMetrics.Config(log_freq=1, disable_color_printing=True),
        model_spec=spec,
        dataloader=ZephonVLDataLoader.Config(recipe=recipe, workers=1),
        optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(
            seq_len=64,
            local_batch_size=1,
            global_batch_size=8,
            steps=12,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        checkpoint=CheckpointManager.Config(interval=6, last_save_model_only=False),
        activation_checkpoint=None,
    )
