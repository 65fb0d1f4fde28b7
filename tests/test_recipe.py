"""The recipe says what is wrong, where, and what is allowed, in TOML and in Python alike."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from zephon_vl.errors import RecipeError
from zephon_vl.recipe import (
    PackingConfig,
    Recipe,
    SourceConfig,
    TokenizerConfig,
    VisionConfig,
    load_recipe,
)

EXAMPLE = """
seed = 42
lanes = 16
global_batch_size = 32          # packed sequences per optimizer step
seq_len = 2048

[tokenizer]
path = "tokenizer"              # a directory or file that transformers / tokenizers loads

[vision]
preset = "qwen3_5"              # patch, merge, temporal patch, pixel limits, mean/std, special tokens
max_pixels = 200704

[packing]
algorithm = "best_fit"          # or "first_fit", "concat"
open_sequences = 8
overlong = "truncate"           # or "split", "drop"; never inside an image's tokens

[[sources]]
name = "captions"
path = "captions/*.tar"         # format from the suffix; brace and glob patterns
schema = "caption"              # "text" | "caption" | "interleaved" | "chat"
weight = 3.0                    # share of training tokens; weight_by = "samples" is the alternative

[[sources]]
name = "web"
path = "web/*.jsonl"
schema = "text"
weight = 1.0
"""

IN_PYTHON = Recipe(
    seed=42,
    lanes=16,
    global_batch_size=32,
    seq_len=2048,
    tokenizer=TokenizerConfig(path="tokenizer"),
    vision=VisionConfig(preset="qwen3_5", max_pixels=200704),
    packing=PackingConfig(algorithm="best_fit", open_sequences=8, overlong="truncate"),
    sources=(
        SourceConfig(name="captions", path="captions/*.tar", schema="caption", weight=3.0),
        SourceConfig(name="web", path="web/*.jsonl", schema="text", weight=1.0),
    ),
)


def load(directory: Path, text: str) -> Recipe:
    path = directory / "recipe.toml"
    path.write_text(text)
    return load_recipe(path)


def error_of(directory: Path, text: str) -> str:
    """What is said about a recipe, after the name of the file."""
    with pytest.raises(RecipeError) as caught:
        load(directory, text)
    file, _, said = str(caught.value).partition(": ")
    assert file == str(directory / "recipe.toml")
    assert "\n" not in said
    return said


def test_the_example_loads_and_equals_the_same_in_python(tmp_path: Path) -> None:
    recipe = load(tmp_path, EXAMPLE)
    IN_PYTHON.validate()
    assert recipe == msgspec.structs.replace(IN_PYTHON, base_dir=str(tmp_path))
    assert recipe.resolve("captions/*.tar") == str(tmp_path / "captions/*.tar")
    assert recipe.resolve("/data/x") == "/data/x"
    assert recipe.resolve("s3://bucket/x") == "s3://bucket/x"


def test_paths_start_from_the_recipe_wherever_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.toml").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("recipe.toml")
    monkeypatch.chdir("/")
    assert recipe.resolve("tokenizer") == str(tmp_path / "tokenizer")


def test_a_recipe_travels_to_other_processes_unchanged(tmp_path: Path) -> None:
    text = (
        EXAMPLE
        + 'order = "blocks"\nfields = { text = "body" }\noperators = [{ use = "map", n = [1, 2.5, true, "x"] }]\n'
    )
    recipe = load(tmp_path, text)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(recipe), type=Recipe) == recipe
    assert recipe.sources[1].operators == ({"use": "map", "n": [1, 2.5, True, "x"]},)


def test_a_recipe_is_frozen(tmp_path: Path) -> None:
    recipe = load(tmp_path, EXAMPLE)
    for part in (recipe, recipe.tokenizer, recipe.vision, recipe.packing, recipe.sources[0]):
        assert part is not None
        with pytest.raises(AttributeError, match="immutable"):
            setattr(part, part.__struct_fields__[0], 1)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # unknown keys
        ("seed", "sed", "sed: unknown key; allowed here: lanes, global_batch_size, seq_len, tokenizer, sources, seed"),
        (
            "open_seq",
            "opn_seq",
            "packing.opn_sequences: unknown key; allowed here: algorithm, open_sequences, overlong",
        ),
        ('name = "web"', 'nam = "web"', "sources[1].nam: unknown key; allowed here: name, path, schema, weight, order"),
        ("[packing]", "[pack]", "pack: unknown key; allowed here: lanes"),
        ("seed = 42", '"" = 1', "the recipe: contains unknown field"),
        # wrong types
        ("lanes = 16", 'lanes = "16"', "lanes: expected `int`, got `str`"),
        ("lanes = 16", "lanes = true", "lanes: expected `int`, got `bool`"),
        ("seed = 42", "seed = 1.5", "seed: expected `int`, got `float`"),
        ("weight = 1.0", 'weight = "1"', "sources[1].weight: expected `float`, got `str`"),
        ("weight = 1.0", "fields = { text = 3 }", "sources[1].fields[...]: expected `str`, got `int`"),
        ("weight = 1.0", "fields = 3", "sources[1].fields: expected `table`, got `int`"),
        ("weight = 1.0", 'operators = ["map"]', "sources[1].operators[0]: expected `table`, got `str`"),
        ('path = "web/*.jsonl"', 'path = ["a", 3]', "sources[1].path[1]: expected `str`, got `int`"),
        ("[vision]", "[[vision]]", "vision: expected `table`, got `array`"),
        # bad values
        ('"best_fit"', '"bestfit"', "packing.algorithm is 'bestfit', but must be one of best_fit, first_fit, concat"),
        ('"caption"', '"image"', "sources[0].schema is 'image', but must be one of text, caption, interleaved, chat"),
        ("weight = 1.0", 'order = "block"', "sources[1].order is 'block', but must be one of global, blocks, none"),
        ("seed = 42", 'weight_by = "token"', "weight_by is 'token', but must be one of tokens, samples"),
        ("lanes = 16", "lanes = 0", "lanes is 0, but must be from 1 to 65,536"),
        ("seq_len = 2048", "seq_len = -1", "seq_len is -1, but must be from 1 to 16,777,216"),
        ("seed = 42", "seed = 9223372036854775808", "seed is 9223372036854775808, but must be a 64-bit integer"),
        ("size = 32", "size = 30", "global_batch_size is 30, but must be a multiple of lanes (16), since every lane"),
        ("size = 32", "size = 8", "global_batch_size is 8, but must be a multiple of lanes (16)"),
        ("seed = 42", "max_bad_share = 1.5", "max_bad_share is 1.5, but must be between 0 and 1"),
        ("seed = 42", "max_bad_share = nan", "max_bad_share is nan, but must be between 0 and 1"),
        ("open_sequences = 8", "open_sequences = 0", "packing.open_sequences is 0, but must be at least 1"),
        ('name = "web"', 'name = "captions"', "sources[1].name is 'captions', but must be unique and not empty"),
        ('name = "web"', 'name = ""', "sources[1].name is '', but must be unique and not empty"),
        ("weight = 1.0", "weight = -1", "sources[1].weight is -1.0, but must be from 0 to 1e+09"),
        ("weight = 1.0", "weight = inf", "sources[1].weight is inf, but must be from 0 to 1e+09"),
        ("weight = 1.0", "weight = nan", "sources[1].weight is nan, but must be from 0 to 1e+09"),
        ("weight = 1.0", "block_window = 0", "sources[1].block_window is 0, but must be at least 1"),
        ('path = "web/*.jsonl"', 'path = ""', "sources[1].path is '', but must be a path or pattern"),
        ('path = "web/*.jsonl"', "path = []", "sources[1].path is (), but must be a path or pattern"),
        ('path = "web/*.jsonl"', 'path = ["a", ""]', "sources[1].path is ('a', ''), but must be a path or pattern"),
        ("weight = 1.0", "operators = [{ f = 1 }]", "sources[1].operators[0] is {'f': 1}, but must be a table with"),
        ("seed = 42", "operators = [{ f = 1 }]", "operators[0] is {'f': 1}, but must be a table with the key"),
        (
            "seed = 42",
            'operators = [{ use = "map", d = 1979-05-27 }]',
            "operators[0] is {'use': 'map', ",
        ),
        ("weight = 1.0", 'operators = [{ use = "map", d = nan }]', "sources[1].operators[0] is {'use': 'map', "),
        ("max_pixels = 200704", "max_source_pixels = 0", "vision.max_source_pixels is 0, but must be at least 1"),
        ("qwen3_5", "qwen9", "vision.preset is 'qwen9', but must be one of kimi_k2_5, kimi_vl"),
        ("seq_len = 2048", "seq_len = 32", "seq_len is 32, but must be at least 66: the smallest image of preset"),
        ("max_pixels = 200704", "max_pixels = 9999999", "vision.max_pixels is 9999999, so an image may take"),
        (
            "seed = 42",
            'base_dir = "/"',
            "base_dir cannot be set in a recipe file; paths start from the file's directory",
        ),
        # something missing
        ("lanes = 16", "", "the recipe: missing required field `lanes`"),
        ('name = "web"', "", "sources[1]: missing required field `name`"),
        ('preset = "qwen3_5"', "", "vision: missing required field `preset`"),
    ],
)
def test_errors_name_the_field_the_value_and_what_is_allowed(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert EXAMPLE.count(old) >= 1
    assert error_of(tmp_path, EXAMPLE.replace(old, new, 1)).startswith(said)


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("weight = 1.0", 'weight_by = "samples"', "'weight_by' belongs at the top of the recipe"),
        ("seed = 42", "max_pixels = 9", "'max_pixels' belongs in vision"),
        ("open_sequences = 8", "seq_len = 8", "'seq_len' belongs at the top of the recipe or in phases"),
        ("seed = 42", 'path = "x"', "'path' belongs in tokenizer or in sources"),
    ],
)
def test_a_key_in_the_wrong_table_is_told_its_place(tmp_path: Path, old: str, new: str, hint: str) -> None:
    said = error_of(tmp_path, EXAMPLE.replace(old, new))
    assert "unknown key; allowed here: " in said
    assert said.endswith(f"; {hint}")


def test_base_dir_is_nowhere_offered(tmp_path: Path) -> None:
    assert "belongs" not in error_of(tmp_path, EXAMPLE + 'base_dir = "/"\n')


def test_no_sources_and_no_weights(tmp_path: Path) -> None:
    top = EXAMPLE.split("[tokenizer]")[0] + 'tokenizer.path = "x"\n'
    assert "must be at least one [[sources]] table" in error_of(tmp_path, top + "sources = []\n")
    source = '[[sources]]\nname = "a"\npath = "a"\nschema = "text"\nweight = 0\n'
    assert "must be at least one weight above 0" in error_of(tmp_path, top + source)


def test_images_need_vision(tmp_path: Path) -> None:
    said = error_of(tmp_path, EXAMPLE.replace('[vision]\npreset = "qwen3_5"', "").replace("max_pixels", "#"))
    assert said.startswith(
        'sources[0].schema is \'caption\', but must be "text" or "chat" in a recipe without [vision]'
    )


def test_what_is_said_about_pixels_helps(tmp_path: Path) -> None:
    """The limit that is offered is accepted, and the next larger one is not."""
    large = EXAMPLE.replace("max_pixels = 200704", "max_pixels = {}")
    limit = int(error_of(tmp_path, large.format(9999999)).rpartition(" ")[2])
    assert load(tmp_path, large.format(limit)).vision == VisionConfig(preset="qwen3_5", max_pixels=limit)
    assert "vision.max_pixels" in error_of(tmp_path, large.format(limit + 1))


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "absent.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(RecipeError, match=f"cannot read the recipe {path}: {said}"):
            load_recipe(path)
    for content in (b"lanes = = 3", b"\xff\xfe"):
        (tmp_path / "broken.toml").write_bytes(content)
        with pytest.raises(RecipeError, match=r"broken\.toml is not valid TOML: "):
            load_recipe(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lanes": "16"}, "lanes: expected `int`, got `str`"),
        ({"seed": np.int64(3)}, "the recipe holds np.int64(3), of type numpy.int64, but must be made of strings"),
        (
            {"base_dir": Path("/data")},
            "the recipe holds PosixPath('/data'), of type pathlib.PosixPath, but must be made of",
        ),
        ({"weight_by": "token"}, "weight_by is 'token', but must be one of tokens, samples"),
        ({"packing": PackingConfig(algorithm="bestfit")}, "packing.algorithm is 'bestfit', but must be"),  # type: ignore[arg-type]
        ({"tokenizer": "tokenizer"}, "tokenizer: expected `table`, got `str`"),
        ({"sources": SourceConfig(name="a", path="a", schema="text")}, "sources: expected `array`, got `table`"),
        (
            {"operators": ({"use": print},)},
            "the recipe holds <built-in function print>, of type builtins.builtin_function_or_method",
        ),
        ({"operators": ({"use": "map", "day": datetime.date(2020, 1, 1)},)}, "operators[0] is {'use': 'map', "),
        ({"operators": ({"use": "map", "size": (1, 2)},)}, "operators[0] is {'use': 'map', "),
    ],
)
def test_types_are_checked_in_python_too(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        msgspec.structs.replace(IN_PYTHON, **changes).validate()
    assert str(caught.value).startswith(said)


def test_lists_and_whole_numbers_are_fine_in_python() -> None:
    source = SourceConfig(name="a", path=["a", "b"], schema="text", weight=3)  # type: ignore[arg-type]
    msgspec.structs.replace(IN_PYTHON, sources=[source]).validate()
