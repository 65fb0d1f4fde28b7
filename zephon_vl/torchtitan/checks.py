"""What TorchTitan and the recipe both say must be the same; a difference is refused with both values and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from zephon_vl.contracts import Vocabulary
from zephon_vl.errors import RecipeError
from zephon_vl.recipe import Recipe
from zephon_vl.torchtitan.interfaces import Sizes

_PROBE = "A cat's 3rd photo, naïve façade: 12.5 % of 你好 世界!\n\tdef area(w, h): return w * h  # <b>x</b>"
"""Text in which two tokenizers with the same tokens, but other rules, soon differ."""
_VISION = ("image", "video", "vision_start", "vision_end")


def check_recipe(recipe: Recipe, sizes: Sizes) -> None:
    """Compare sequence lengths, and refuse planned changes that TorchTitan cannot follow. Raises `RecipeError`."""
    if recipe.seq_len != sizes.seq_len:
        raise RecipeError(
            f"{sizes.seq_len_field} is {sizes.seq_len}, but the recipe's seq_len is {recipe.seq_len}: set "
            f"{sizes.seq_len_field} to {recipe.seq_len}, or change the recipe, which starts a new run"
        )
    for i, phase in enumerate(recipe.phases):
        for name in ("seq_len", "global_batch_size"):
            now, then = getattr(recipe, name), getattr(phase, name)
            if then not in (None, now):
                raise RecipeError(
                    f"phases[{i}].{name} is {then} from step {phase.from_step} on, after {now}, but TorchTitan keeps "
                    f"its training.{name} for a whole run: remove it from the phase, or end the run there and start "
                    "one with another recipe. Changes of weights are served"
                )


def check_repeats(recipe: Recipe, forever: bool | None) -> None:
    """What validation asks for. Raises `RecipeError`.

    Args:
        forever: whether the validator stops by itself, after its number of steps; None outside of validation.
    """
    if forever is False and recipe.repeat:
        raise RecipeError(
            "validator.steps is -1, which takes all the data once, but the validation recipe has repeat = true and "
            'never ends: set repeat = false in it (and order = "none" for each source), or set validator.steps'
        )


def check_tokenizer(recipe: Recipe, vocabulary: Vocabulary, tokenizer: Any) -> None:
    """Compare what TorchTitan loaded from `hf_assets_path` with what the recipe tokenizes with.

    All tokens and ids are compared, then the ids of a probe text, then the vision tokens: not the files, since each
    side adds the tokens of `tokenizer_config.json` in its own way.

    Raises:
        RecipeError: at the first difference.
    """
    ours = Tokenizer.from_file(vocabulary.tokenizer_json)
    theirs = getattr(tokenizer, "tokenizer", None)
    if isinstance(theirs, Tokenizer):
        _compare_tokens(recipe, ours.get_vocab(), theirs.get_vocab())
        _compare_probe(recipe, ours, theirs.encode(_PROBE, add_special_tokens=False).ids)
    else:
        size = tokenizer.get_vocab_size()
        if size != vocabulary.size:
            raise _other_tokenizer(recipe, f"has {size} tokens, but the recipe's has {vocabulary.size}")
        _compare_probe(recipe, ours, tokenizer.encode(_PROBE, add_bos=False, add_eos=False))
    if recipe.vision is not None:
        _compare_vision(recipe, vocabulary, tokenizer)


def special_tokens(recipe: Recipe, tokenizer: Any) -> Mapping[str, int]:
    """What the models are told of special tokens, by name; empty for text."""
    if recipe.vision is None:
        return {}
    return {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in tokenizer.TOKEN_FIELDS}


def _compare_tokens(recipe: Recipe, ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    if ours == theirs:
        return
    token = min(
        (text for text in ours.keys() | theirs.keys() if ours.get(text) != theirs.get(text)),
        key=lambda text: (min(ours.get(text, 1 << 40), theirs.get(text, 1 << 40)), text),
    )
    raise _other_tokenizer(
        recipe,
        f"has {len(theirs)} tokens and the recipe's {len(ours)}; the first difference is {token!r}, which is "
        f"{theirs.get(token, 'absent')} there and {ours.get(token, 'absent')} here",
    )


def _compare_probe(recipe: Recipe, ours: Tokenizer, theirs: list[int]) -> None:
    ids = ours.encode(_PROBE, add_special_tokens=False).ids
    if ids != theirs:
        at = next((i for i, (a, b) in enumerate(zip(ids, theirs, strict=False)) if a != b), min(len(ids), len(theirs)))
        raise _other_tokenizer(
            recipe,
            f"has the same tokens but makes other ids of a text: from token {at} on {theirs[at : at + 4]}, and the "
            f"recipe's {ids[at : at + 4]}",
        )


def _compare_vision(recipe: Recipe, vocabulary: Vocabulary, tokenizer: Any) -> None:
    if not hasattr(tokenizer, "TOKEN_FIELDS"):
        raise RecipeError(
            f"the recipe has [vision], but TorchTitan's tokenizer is {type(tokenizer).__name__}, which does not know "
            "the vision tokens: set tokenizer=MultiModalTokenizer.Config(...) with the model's special tokens, as in "
            "TorchTitan's own configs of this model"
        )
    for name in _VISION:
        here, there = getattr(vocabulary, name), getattr(tokenizer, f"{name}_id")
        if here >= 0 and here != there:
            raise RecipeError(
                f"tokenizer.{name}_token is {getattr(tokenizer, f'{name}_token')!r} ({there}), but the recipe's "
                f"{name}_token has id {here}: set one as the other, in MultiModalTokenizer.Config or in the recipe's "
                "[vision]"
            )


def _other_tokenizer(recipe: Recipe, how: str) -> RecipeError:
    return RecipeError(
        f"TorchTitan's tokenizer, from hf_assets_path, {how}. The recipe's is {recipe.resolve(recipe.tokenizer.path)}: "
        "let hf_assets_path and the recipe's tokenizer.path name the same directory"
    )
