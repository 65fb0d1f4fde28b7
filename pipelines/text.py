"""Text only: tokenize, mix, pack, batch."""

from __future__ import annotations

from collections.abc import Sequence

from zephon_vl.contracts import Chain, Mixer, Operator, Packer, RowWriter, Vocabulary
from zephon_vl.operators.batch import PackedRowWriter
from zephon_vl.operators.mix import DeficitMixer
from zephon_vl.operators.pack import SequencePacker
from zephon_vl.recipe import Recipe, SourceConfig


class TextPipeline:
    """Documents of text become packed sequences."""

    def mixer(self, recipe: Recipe, weights: Sequence[float]) -> Mixer:
        return DeficitMixer(weights, recipe.weight_by)

    def packer(self, recipe: Recipe) -> Packer:
        return packer_of(recipe, reserve=0)

    def chain(self, recipe: Recipe, source: SourceConfig, vocabulary: Vocabulary) -> Chain:
        # Imported here: the coordinator builds pipelines too, and needs no tokenizer.
        from zephon_vl.operators.registry import build_operators

        own = build_operators(recipe, source)
        return Chain.of(measure=[*own, tokenizer_of(recipe, source, vocabulary)], render=[])

    def preload(self, recipe: Recipe, vocabulary: Vocabulary) -> None:
        preload_tokenizers(recipe, vocabulary)

    def row_writer(self, recipe: Recipe, vocabulary: Vocabulary) -> RowWriter:
        return PackedRowWriter(vocabulary.pad, merge=1)


def packer_of(recipe: Recipe, reserve: int) -> SequencePacker:
    """The packer that a recipe asks for."""
    packing = recipe.packing
    return SequencePacker(
        seq_len=recipe.seq_len,
        algorithm=packing.algorithm,
        open_sequences=packing.open_sequences,
        overlong=packing.overlong,
        reserve=reserve,
    )


def preload_tokenizers(recipe: Recipe, vocabulary: Vocabulary) -> None:
    """Read the vocabulary, and import the operators that `tokenizer_of` makes."""
    import zephon_vl.operators.registry
    from zephon_vl.operators.tokenize import text_encoder

    text_encoder(vocabulary)
    if any(source.schema == "chat" for source in recipe.sources):
        import zephon_vl.operators.chat  # noqa: F401


def tokenizer_of(recipe: Recipe, source: SourceConfig, vocabulary: Vocabulary) -> Operator:
    """The tokenize operator that a source's schema asks for."""
    if source.schema == "chat":
        from zephon_vl.operators.chat import ChatTokenize

        return ChatTokenize(recipe, source, vocabulary)
    from zephon_vl.operators.tokenize import Tokenize

    return Tokenize(recipe, source, vocabulary)


pipeline = TextPipeline()
