"""A user's operators: built from the recipe's tables, keyed generators, clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from zephon_vl.contracts import Context, ImageJob, ImagePart, Sample, SourceReader, TextPart, has_face
from zephon_vl.errors import BadSample, RecipeError, UserCodeError
from zephon_vl.operators.registry import build_operators, operators_identity
from zephon_vl.recipe import Recipe, SourceConfig, TokenizerConfig

CODE = """
from dataclasses import dataclass
import neighbour
from zephon_vl.contracts import Operator, TextPart
from zephon_vl.errors import BadSample

def shout(sample):
    for part in sample.parts:
        part.text = part.text.upper() + neighbour.MARK
    return sample

def draw(sample, generator):
    sample.parts.append(TextPart(str(generator.integers(1 << 60))))
    return sample

def draw_by_name(sample, *, rng, times=1):
    for _ in range(times):
        draw(sample, rng)
    return sample

def short(sample, limit=5):
    return len(sample.parts[0].text) <= limit

def forgets(sample):
    pass

def skips(sample):
    raise BadSample("no good")

def fails(sample):
    return {}["absent"]

def three(a, b, c):
    return a

class Flip(Operator):
    def __init__(self, amount: int = 1):
        if amount < 0:
            raise ValueError("amount is negative")
    def render(self, pixels, job):
        return pixels.transpose(0)

class Turn(Operator):
    def render(self, pixels, job):
        return pixels.rotate(90, expand=True)

class DropAll(Operator):
    text_only = True
    def measure(self, sample, context):
        return None

class Nothing(Operator):
    pass
"""


class Reader:
    """Stands for an open source."""

    name = "web"

    def locate(self, index: int) -> tuple[str, str]:
        return "shard-7.jsonl", f"line {index}"


READER: SourceReader = Reader()  # type: ignore[assignment]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "my_ops.py").write_text(CODE)
    (tmp_path / "neighbour.py").write_text("MARK = '!'\n")
    (tmp_path / "broken.py").write_text("import absent_module_of_nobody\n")
    return tmp_path


def recipe_of(directory: Path, *tables: dict[str, Any], for_all: tuple[dict[str, Any], ...] = ()) -> Recipe:
    source = SourceConfig(name="web", path="*.jsonl", schema="text", operators=tables)
    return Recipe(
        lanes=1,
        global_batch_size=1,
        seq_len=8,
        tokenizer=TokenizerConfig(path="t"),
        sources=(source,),
        operators=for_all,
        base_dir=str(directory),
    )


def measure(recipe: Recipe, text: str = "hello", epoch: int = 0, index: int = 3) -> Sample | None:
    sample: Sample | None = Sample("k", "s", parts=[TextPart(text)])
    context = Context(READER, 1, 0, epoch, index)
    for operator in build_operators(recipe, recipe.sources[0]):
        assert sample is not None
        sample = operator.measure(sample, context)
        if sample is None:
            return None
    return sample


def texts(sample: Sample | None) -> list[str]:
    assert sample is not None
    return [part.text for part in sample.parts if isinstance(part, TextPart)]


def use(function: str, kind: str = "map", **more: Any) -> dict[str, Any]:
    return {"use": kind, "function": f"my_ops.py:{function}", **more}


def test_own_operators_come_before_those_of_all_sources(directory: Path) -> None:
    recipe = recipe_of(directory, use("short", "filter"), for_all=(use("shout"), use("short", "filter", limit=6)))
    assert texts(measure(recipe)) == ["HELLO!"]
    assert measure(recipe, "longer") is None


def test_generator_is_the_sample_s_and_the_operator_s(directory: Path) -> None:
    recipe = recipe_of(directory, use("draw"), use("draw_by_name", times=2))
    first = texts(measure(recipe))
    assert len(set(first)) == 4 and first == texts(measure(recipe))
    assert not set(first[1:]) & set(texts(measure(recipe, epoch=1)))
    assert not set(first[1:]) & set(texts(measure(recipe, index=4)))
    with_filter = recipe_of(directory, use("draw"), use("draw_by_name", times=2), use("shout"))
    assert [text + "!" for text in first[1:]] == texts(measure(with_filter))[1:]


def test_classes_have_the_faces_of_the_user_s(directory: Path) -> None:
    recipe = recipe_of(directory, {"use": "my_ops.py:Flip", "amount": 2}, {"use": "my_ops.py:DropAll"})
    flip, drop = build_operators(recipe, recipe.sources[0])
    assert (has_face(flip, "measure"), has_face(flip, "render")) == (False, True)
    assert (has_face(drop, "measure"), has_face(drop, "render"), drop.text_only) == (True, False, True)
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    flipped = flip.render(image, job())
    assert np.array_equal(np.asarray(flipped), np.asarray(image)[:, ::-1])
    assert drop.measure(Sample("k", "s"), Context(READER, 1, 0, 0, 0)) is None


def test_render_must_keep_the_size(directory: Path) -> None:
    recipe = recipe_of(directory, {"use": "my_ops.py:Turn"})
    (turn,) = build_operators(recipe, recipe.sources[0])
    with pytest.raises(UserCodeError, match=r"my_ops.py:Turn returned RGB \(2, 4\).* of size \(4, 2\)"):
        turn.render(Image.new("RGB", (4, 2)), job())


def job() -> ImageJob:
    return ImageJob(ImagePart(), np.zeros((1, 12), np.uint8), Context(READER, 1, 0, 0, 0, 0))


def test_bad_sample_passes(directory: Path) -> None:
    with pytest.raises(BadSample, match="no good"):
        measure(recipe_of(directory, use("skips")))


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (use("fails"), "raised KeyError: 'absent'"),
        (use("forgets"), "returned NoneType"),
        (use("forgets", "filter"), "returned NoneType"),
    ],
)
def test_failing_code_names_itself_and_the_sample(directory: Path, table: dict[str, Any], what: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        measure(recipe_of(directory, table))
    text = str(caught.value)
    for part in ("sources[0].operators[0]", table["function"], what, "'web'", "shard-7.jsonl", "line 3"):
        assert part in text
    if "fails" in table["function"]:
        assert 'return {}["absent"]' in text


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"use": "mop"}, "use is 'mop'"),
        ({"use": "map"}, "needs the key function"),
        (use("absent"), "has no 'absent'; it has .*shout"),
        ({"use": "map", "function": "absent.py:f"}, "No such file"),
        ({"use": "map", "function": "absent_module_of_nobody:f"}, "cannot import"),
        ({"use": "map", "function": "broken.py:f"}, "absent_module_of_nobody"),
        ({"use": "map", "function": "my_ops.py"}, "must be 'module:name'"),
        (use("shout", volume=3), "volume"),
        (use("three"), "missing a required argument"),
        ({"use": "my_ops.py:Flip", "amuont": 2}, "amuont"),
        ({"use": "my_ops.py:Flip", "amount": -1}, "amount is negative"),
        ({"use": "my_ops.py:shout"}, "subclass of zephon_vl.Operator"),
        ({"use": "my_ops.py:Nothing"}, "neither measure nor render"),
    ],
)
def test_what_cannot_be_built(directory: Path, table: dict[str, Any], message: str) -> None:
    recipe = recipe_of(directory, for_all=(table,))
    with pytest.raises(RecipeError, match=message) as caught:
        build_operators(recipe, recipe.sources[0])
    assert "operators[0]" in str(caught.value)


def test_identity_follows_the_source(directory: Path) -> None:
    recipe = recipe_of(directory, use("shout"), {"use": "filter", "function": "json:loads"})
    before = operators_identity(recipe)
    assert set(before["web"]) == {"my_ops.py", "json"}
    (directory / "my_ops.py").write_text(CODE + "# changed\n")
    after = operators_identity(recipe)
    assert after["web"]["json"] == before["web"]["json"] and after["web"]["my_ops.py"] != before["web"]["my_ops.py"]
    with pytest.raises(RecipeError, match=r"operators\[0\]: cannot read .*absent.py"):
        operators_identity(recipe_of(directory, for_all=({"use": "absent.py:Class"},)))
