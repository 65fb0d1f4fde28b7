"""The operators that a recipe's `operators` tables name, built and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image

from zephon_vl.contracts import Context, ImageJob, Operator, Sample, has_face
from zephon_vl.errors import RecipeError
from zephon_vl.operators.filter import Filter
from zephon_vl.operators.map import Map
from zephon_vl.operators.user_code import UserCode, load_object, source_hash

if TYPE_CHECKING:
    from zephon_vl.recipe import Recipe, SourceConfig

_FUNCTIONS = {"map": Map, "filter": Filter}


def build_operators(recipe: Recipe, source: SourceConfig) -> list[Operator]:
    """A source's own operators, then those of all sources, each from its table:

    - `{ use = "map", function = "module:name" }` and `{ use = "filter", function = "file.py:name" }`,
    - `{ use = "module:Class" }` for a subclass of `Operator`.

    Further keys are keyword arguments of the function or class. Files are relative to the recipe.

    Raises:
        RecipeError: naming the table, for what cannot be imported or called so, or is no operator.
    """
    return [_build(recipe, where, table, place) for place, (where, table) in enumerate(_tables(recipe, source))]


def operators_identity(recipe: Recipe) -> dict[str, dict[str, str]]:
    """For each source the SHA-256 of every module or file that holds a user's operator, by its name in the recipe.

    Imports no user's code. What such a file imports itself is not looked at.

    Raises:
        RecipeError: for a file or module that is not there.
    """
    hashes: dict[str, dict[str, str]] = {}
    for source in recipe.sources:
        for where, table in _tables(recipe, source):
            container, digest = source_hash(recipe, where, _object_name(where, table))
            hashes.setdefault(source.name, {})[container] = digest
    return hashes


def _tables(recipe: Recipe, source: SourceConfig) -> list[tuple[str, Mapping[str, Any]]]:
    number = next(i for i, candidate in enumerate(recipe.sources) if candidate.name == source.name)
    own = [(f"sources[{number}].operators[{j}]", table) for j, table in enumerate(source.operators)]
    return own + [(f"operators[{j}]", table) for j, table in enumerate(recipe.operators)]


def _object_name(where: str, table: Mapping[str, Any]) -> str:
    use = table.get("use")
    if use in _FUNCTIONS:
        if "function" not in table:
            raise RecipeError(f'{where}: use = {use!r} needs the key function = "module:name" or "file.py:name"')
        return table["function"]
    if not isinstance(use, str) or ":" not in use:
        raise RecipeError(
            f"{where}.use is {use!r}, but must be one of {', '.join(map(repr, _FUNCTIONS))}, or 'module:Class' or "
            "'file.py:Class' of a subclass of zephon_vl.Operator"
        )
    return use


def _build(recipe: Recipe, where: str, table: Mapping[str, Any], place: int) -> Operator:
    name, use = _object_name(where, table), table["use"]
    kwargs = {
        key: value for key, value in table.items() if key != "use" and (key != "function" or use not in _FUNCTIONS)
    }
    code = UserCode(where=where, name=name, place=place, target=load_object(recipe, where, name), kwargs=kwargs)
    if use in _FUNCTIONS:
        if not callable(code.target):
            raise RecipeError(f"{where}: {name} is {type(code.target).__name__}, but must be a function of a sample")
        return _FUNCTIONS[use](code)
    return _build_class(code)


def _build_class(code: UserCode) -> Operator:
    kind = code.target
    if not (isinstance(kind, type) and issubclass(kind, Operator)):
        raise RecipeError(f"{code.where}: {code.name} is {kind!r}, but must be a subclass of zephon_vl.Operator")
    code.check_call()
    try:
        operator = kind(**code.kwargs)
    except Exception as error:  # the user's constructor may raise anything
        raise RecipeError(
            f"{code.where}: {code.name} cannot be built: {type(error).__name__}: {error}; its keys are "
            f"{dict(code.kwargs)}"
        ) from error
    faces = (has_face(operator, "measure"), has_face(operator, "render"))
    wrapper = {(True, True): _Both, (True, False): _Measuring, (False, True): _Rendering}.get(faces)
    if wrapper is None:
        raise RecipeError(f"{code.where}: {code.name} overrides neither measure nor render, so it does nothing")
    return wrapper(operator, code)


class _Wrapped(Operator):
    """A user's operator; what it raises names it and the sample. The subclasses have the faces that it has."""

    def __init__(self, operator: Operator, code: UserCode) -> None:
        self.operator, self.code = operator, code
        self.text_only = operator.text_only


class _Measuring(_Wrapped):
    def measure(self, sample: Sample, context: Context) -> Sample | None:
        with self.code.guard(context):
            result = self.operator.measure(sample, self.code.context(context))
        if result is not None and not isinstance(result, Sample):
            raise self.code.failed(
                context,
                f"returned {type(result).__name__} from measure, but must return the Sample, or None to drop it",
            )
        return result


class _Rendering(_Wrapped):
    def render(self, pixels: Image.Image, job: ImageJob) -> Image.Image:
        context = job.context
        with self.code.guard(context):
            result = self.operator.render(pixels, ImageJob(job.part, job.out, self.code.context(context)))
        if not isinstance(result, Image.Image) or result.mode != "RGB" or result.size != pixels.size:
            found = f"{result.mode} {result.size}" if isinstance(result, Image.Image) else type(result).__name__
            raise self.code.failed(
                context, f"returned {found} from render, but must return an RGB PIL image of size {pixels.size}"
            )
        return result


class _Both(_Measuring, _Rendering):
    pass
