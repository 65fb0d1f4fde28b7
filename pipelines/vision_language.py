"""Vision-language: decode, resize, patchify, tokenize, mix, pack, batch."""

from __future__ import annotations

from collections.abc import Sequence

from zephon_vl.contracts import Chain, Mixer, Packer, RowWriter, Vocabulary
from zephon_vl.errors import RecipeError
from zephon_vl.operators.batch import PackedRowWriter
from zephon_vl.operators.mix import DeficitMixer
from zephon_vl.operators.pack import DUMMY_TOKENS
from zephon_vl.pipelines.text import packer_of, preload_tokenizers, tokenizer_of
from zephon_vl.presets import VisionRules, resolve_vision
from zephon_vl.recipe import Recipe, SourceConfig


class VisionLanguagePipeline:
    """Documents of text and images become packed sequences, each with at least one image."""

    def mixer(self, recipe: Recipe, weights: Sequence[float]) -> Mixer:
        return DeficitMixer(weights, recipe.weight_by)

    def packer(self, recipe: Recipe) -> Packer:
        return packer_of(recipe, reserve=DUMMY_TOKENS)

    def chain(self, recipe: Recipe, source: SourceConfig, vocabulary: Vocabulary) -> Chain:
        # Imported here: the coordinator builds pipelines too, and needs no image code.
        from zephon_vl.operators.decode import DecodeImage
        from zephon_vl.operators.patchify import Patchify
        from zephon_vl.operators.registry import build_operators
        from zephon_vl.operators.resize import ResizeImage

        rules = _rules(recipe)
        assert recipe.vision is not None
        own = build_operators(recipe, source)
        decode, resize, patchify = DecodeImage(recipe.vision.max_source_pixels), ResizeImage(rules), Patchify(rules)
        # A user's operators measure first, on what the record says, and render between decoding and resizing.
        return Chain.of(
            measure=[*own, decode, resize, patchify, tokenizer_of(recipe, source, vocabulary)],
            render=[decode, *own, resize, patchify],
        )

    def preload(self, recipe: Recipe, vocabulary: Vocabulary) -> None:
        import zephon_vl.operators.decode
        import zephon_vl.operators.patchify
        import zephon_vl.operators.resize  # noqa: F401

        preload_tokenizers(recipe, vocabulary)

    def row_writer(self, recipe: Recipe, vocabulary: Vocabulary) -> RowWriter:
        return PackedRowWriter(vocabulary.pad, _rules(recipe).merge)


def _rules(recipe: Recipe) -> VisionRules:
    if recipe.vision is None:
        raise RecipeError("the vision-language pipeline needs a [vision] table with a preset")
    return resolve_vision(recipe.vision)


pipeline = VisionLanguagePipeline()
