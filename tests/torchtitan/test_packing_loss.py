"""The loss of TorchTitan's tiny VLM on a packed batch is that of its documents alone: nothing leaks between documents,
positions are right, images reach their places."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import build
from torch.nn.functional import cross_entropy
from torchtitan.distributed import utils as dist_utils

from zephon_vl.torchtitan.config_registry import llama3_tiny, qwen35_tiny


@pytest.fixture(scope="module", autouse=True)
def backend() -> None:
    dist_utils.set_spmd_backend("partial_dtensor")


def _model(config: Any) -> torch.nn.Module:
    torch.manual_seed(3)
    config.model_spec.model.update_from_config(config=config)
    model = config.model_spec.model.build()
    with torch.no_grad():
        model.init_weights(buffer_device=None)
        for name, parameter in model.named_parameters():
            if parameter.abs().max() == 0 or "pos_embed" in name:  # so that nothing is switched off
                parameter.normal_(0, 0.1)
    return model.eval()


def _loss(model: Any, inputs: dict[str, Any], labels: torch.Tensor) -> tuple[float, int]:
    """(sum of cross-entropies, labels that count) as the trainer computes them."""
    extra = {name: value for name, value in inputs.items() if name != "input"}
    extra["attention_masks"] = model.get_attention_masks(positions=inputs["positions"])
    with torch.no_grad():
        logits = model(inputs["input"], **extra)
    total = cross_entropy(logits.flatten(0, 1).double(), labels.flatten(), ignore_index=-100, reduction="sum")
    return float(total), int((labels != -100).sum())


def _alone(inputs: dict[str, Any], labels: torch.Tensor) -> list[tuple[dict[str, Any], torch.Tensor]]:
    """Each document of a batch as a batch of its own, images and all."""
    documents = []
    image = 0
    for row in range(len(labels)):
        starts = [*torch.nonzero(inputs["positions"][row] == 0).flatten().tolist(), labels.shape[1]]
        for a, b in itertools.pairwise(starts):
            tokens = {name: inputs[name][row : row + 1, a:b] for name in _per_token(inputs)}
            if "grid_thw" in inputs:
                special = inputs["special_tokens"]
                inside, count = int((tokens["input"] == special["image_id"]).sum()), 0
                while inside > 0:
                    inside -= int(inputs["grid_thw"][image + count].prod()) // 4
                    count += 1
                tokens["special_tokens"] = special
                if count:
                    tokens["grid_thw"] = inputs["grid_thw"][image : image + count]
                    tokens["pixel_values"] = inputs["pixel_values"][image : image + count]
                image += count
            documents.append((tokens, labels[row : row + 1, a:b]))
    return documents


def _per_token(inputs: dict[str, Any]) -> list[str]:
    return [name for name in ("input", "positions", "mrope_positions") if name in inputs]


@pytest.mark.parametrize("config, recipe", [(qwen35_tiny, "vl"), (llama3_tiny, "text")])
def test_a_packed_batch_has_the_loss_of_its_documents(corpus: Path, config: Any, recipe: str) -> None:
    model = _model(config())
    loader = iter(build(corpus, recipe, local_batch_size=4))
    several = 0
    for _ in range(4):
        inputs, labels = next(loader)
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to("cpu")
        packed, count = _loss(model, inputs, labels)
        documents = _alone(inputs, labels)
        alone = [_loss(model, *document) for document in documents]
        several += len(documents) - len(labels)
        assert sum(tokens for _, tokens in alone) == count > 0
        assert packed == pytest.approx(sum(loss for loss, _ in alone), rel=1e-5)
    assert several > 0


def test_the_loss_depends_on_pixels_and_positions(corpus: Path) -> None:
    """Else the test above would hold for a model that sees neither."""
    model = _model(qwen35_tiny())
    batches = itertools.islice(build(corpus, local_batch_size=2), 20)
    inputs, labels = next(  # with several documents, and an image that is not the dummy at the end of a sequence
        batch for batch in batches if len(_alone(*batch)) > 2 and batch[0]["grid_thw"].prod(1).min() > 4
    )
    inputs["pixel_values"] = inputs["pixel_values"].to("cpu")
    loss, _ = _loss(model, inputs, labels)
    one_document = torch.arange(64).expand(2, 64)
    for changed in (
        {"pixel_values": inputs["pixel_values"].flip(-1)},
        {"positions": one_document},
        {"mrope_positions": inputs["mrope_positions"] // 2},
    ):
        other, _ = _loss(model, {**inputs, **changed}, labels)
        assert abs(other - loss) > 1e-5 * loss, sorted(changed)
