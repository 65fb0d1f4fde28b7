"""What TorchTitan and the recipe do not agree on is refused at the start, with both values and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapters import build, tokenizer_of
from tiny_tokenizer import build_tiny_tokenizer
from torchtitan.components.tokenizer import HuggingFaceTokenizer, MultiModalTokenizer
from torchtitan.models.qwen3_5 import QWEN3_5_SPECIAL_TOKENS

from zephon_vl.errors import RecipeError
from zephon_vl.torchtitan import ZephonVLDataLoader


def _refused(corpus: Path, *words: str, recipe: str = "vl", ranks: int = 1, **changed: object) -> None:
    with pytest.raises(RecipeError) as error:
        build(corpus, recipe, ranks=ranks, **changed)
    for word in words:
        assert word in str(error.value)


def test_no_recipe_is_refused(corpus: Path) -> None:
    with pytest.raises(RecipeError, match=r"dataloader\.recipe is empty"):
        ZephonVLDataLoader.Config().build(
            dp_world_size=1, dp_rank=0, tokenizer=tokenizer_of(corpus / "tokenizer"), seq_len=64, local_batch_size=1
        )


def test_another_seq_len_is_refused(corpus: Path) -> None:
    _refused(corpus, "training.seq_len is 128", "seq_len is 64", "set training.seq_len to 64", seq_len=128)


def test_more_ranks_than_lanes_are_refused(corpus: Path) -> None:
    _refused(corpus, "dp_size is 5", "4 lanes", ranks=5)


def test_a_microbatch_of_nothing_is_refused(corpus: Path) -> None:
    _refused(corpus, "microbatch_size is 0", local_batch_size=0)


def test_another_vocabulary_is_refused(corpus: Path, tmp_path: Path) -> None:
    other = tokenizer_of(build_tiny_tokenizer(tmp_path / "other", 500))
    _refused(corpus, "hf_assets_path", "the first difference is", "name the same directory", tokenizer=other)


def test_the_same_tokens_with_other_rules_are_refused(corpus: Path) -> None:
    other = tokenizer_of(corpus / "tokenizer")
    other.tokenizer.pre_tokenizer = None  # words are no longer told apart
    _refused(corpus, "has the same tokens but makes other ids of a text", tokenizer=other)


def test_a_tokenizer_without_vision_tokens_is_refused_with_images_and_served_with_text(corpus: Path) -> None:
    plain = HuggingFaceTokenizer.Config().build(tokenizer_path=str(corpus / "tokenizer"))
    _refused(corpus, "HuggingFaceTokenizer", "MultiModalTokenizer.Config", tokenizer=plain)
    inputs, labels = next(iter(build(corpus, "text", tokenizer=plain)))
    assert set(inputs) == {"input", "positions"}
    assert inputs["input"].shape == labels.shape == (1, 64)


def test_another_image_token_is_refused(corpus: Path) -> None:
    tokens = QWEN3_5_SPECIAL_TOKENS | {"image_token": "<|video_pad|>"}
    other = MultiModalTokenizer.Config(**tokens).build(tokenizer_path=str(corpus / "tokenizer"))
    _refused(corpus, "tokenizer.image_token is '<|video_pad|>'", "recipe's image_token has id", tokenizer=other)


@pytest.mark.parametrize("field, value", [("seq_len", 96), ("global_batch_size", 8)])
def test_phases_that_torchtitan_cannot_follow_are_refused(corpus: Path, field: str, value: int) -> None:
    text = (corpus / "vl.toml").read_text()
    (corpus / "phases.toml").write_text(text + f"\n[[phases]]\nfrom_step = 3\n{field} = {value}\n")
    _refused(corpus, f"phases[0].{field} is {value} from step 3 on", "keeps", recipe="phases")


def test_phases_that_change_weights_are_served(corpus: Path) -> None:
    text = (corpus / "vl.toml").read_text()
    (corpus / "weights.toml").write_text(text + "\n[[phases]]\nfrom_step = 3\nweights = { web = 5.0 }\n")
    assert next(iter(build(corpus, "weights")))[1].shape == (1, 64)


def test_validation_to_the_end_of_data_that_repeats_is_refused(corpus: Path) -> None:
    _refused(corpus, "validator.steps is -1", "repeat = true", infinite=False)
