"""A user's own code in a recipe: found, checked when it is built, and named when it fails."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_vl.contracts import Context, Sample
from zephon_vl.errors import BadSample, RecipeError, UserCodeError, ZephonError
from zephon_vl.rng import sample_generator

if TYPE_CHECKING:
    from zephon_vl.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """A function or class that a recipe's table names."""

    where: str
    """The table, e.g. `sources[0].operators[1]`."""
    name: str
    """As the recipe gives it, e.g. `my_ops.py:keep`."""
    place: int
    """Of the operator among all of a source's; keys its generator."""
    target: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def check_call(self, *arguments: Any, **more: Any) -> None:
        """Raises `RecipeError` if the target cannot be called with these arguments and the table's own keys."""
        try:
            inspect.signature(self.target).bind(*arguments, **more, **self.kwargs)
        except TypeError as error:
            given = ", ".join(self.kwargs) or "none"
            raise RecipeError(
                f"{self.where}: {self.name}{inspect.signature(self.target)} cannot be called: {error}. Keys given "
                f"to it by the table: {given}; add, rename or remove keys to fit its signature"
            ) from error
        except ValueError:  # built-in without a signature: it says by itself what is wrong
            return

    def context(self, context: Context) -> Context:
        """The context with a generator of this operator's own, so that adding an operator leaves the others' draws."""
        return _OwnContext(
            context.source,
            context.seed,
            context.source_index,
            context.epoch,
            context.index,
            context.ordinal,
            place=self.place,
        )

    @contextlib.contextmanager
    def guard(self, context: Context) -> Iterator[None]:
        """What the user's code raises becomes a `UserCodeError`; `BadSample` and the library's own errors pass."""
        try:
            yield
        except (BadSample, ZephonError):
            raise
        except Exception as error:  # it is the user's code: it may raise anything, and is told of it
            trace = error.__traceback__ and error.__traceback__.tb_next  # without this frame
            text = "".join(traceback.format_exception(type(error), error, trace))
            raise self.failed(context, f"raised {type(error).__name__}: {error}", text) from error

    def failed(self, context: Context, what: str, trace: str = "") -> UserCodeError:
        """The error that stops the run."""
        shard, key = context.source.locate(context.index)
        return UserCodeError(
            f"{self.where}: {self.name} {what}; source {context.source.name!r}, shard {shard!r}, key {key!r}. "
            f"Fix it, or let it raise zephon_vl.errors.BadSample to skip a sample" + (f"\n{trace}" if trace else "")
        )


@dataclass(slots=True)
class _OwnContext(Context):
    place: int = 0

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = sample_generator(
                self.seed, self.source.name, self.epoch, self.index, self.ordinal, "operator", self.place
            )
        return self._rng


class UserFunction:
    """A user's function of a sample: `function(sample)`, or `function(sample, rng)` if its signature has room for it.

    Raises:
        RecipeError: from the constructor, if it can be called neither way with the table's keys.
        UserCodeError: from a call, if it raises anything but `BadSample`.
    """

    def __init__(self, code: UserCode) -> None:
        self.code = code
        self._second, self._keyword = _place_of_rng(code)
        code.check_call(None, *([None] if self._second else []), **({"rng": None} if self._keyword else {}))

    def __call__(self, sample: Sample, context: Context) -> Any:
        code = self.code
        with code.guard(context):
            if self._second:
                return code.target(sample, code.context(context).rng, **code.kwargs)
            if self._keyword:
                return code.target(sample, rng=code.context(context).rng, **code.kwargs)
            return code.target(sample, **code.kwargs)


def _place_of_rng(code: UserCode) -> tuple[bool, bool]:
    """Whether a function takes the generator as its second argument, or by the name `rng`."""
    try:
        parameters = inspect.signature(code.target).parameters
    except ValueError:  # a built-in without a signature
        return False, False
    positional = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name not in code.kwargs
    ]
    if "rng" in parameters and positional[1:2] != ["rng"]:
        return False, True
    required = [name for name in positional if parameters[name].default is inspect.Parameter.empty]
    return "rng" in parameters or len(required) == 2, False


def load_object(recipe: Recipe, where: str, name: object) -> Any:
    """The object that `module:name` or `file.py:name` names; a file's path is relative to the recipe.

    Raises:
        RecipeError: naming the table, what was looked for and where.
    """
    container, attribute = _split(where, name)
    module = _import(recipe, where, container)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [text for text in vars(module) if not text.startswith("_")]
            raise RecipeError(
                f"{where}: {container} has no {attribute!r}; it has {', '.join(public[:20]) or 'nothing'}"
            )
        found = getattr(found, part)
    return found


def source_hash(recipe: Recipe, where: str, name: object) -> tuple[str, str]:
    """(module or file of `name`, SHA-256 of its source). Does not import it. Raises `RecipeError`."""
    container, _ = _split(where, name)
    if container.endswith(".py"):
        return container, hashlib.sha256(_read(recipe, where, container)).hexdigest()
    try:
        spec = importlib.util.find_spec(container)
    except (ImportError, ValueError) as error:
        raise _not_importable(where, container, str(error)) from error
    if spec is None:
        raise _not_importable(where, container, "no such module")
    if not spec.has_location or spec.origin is None:
        return container, "built-in"
    return container, hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _split(where: str, name: object) -> tuple[str, str]:
    container, _, attribute = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if not container or not attribute:
        raise RecipeError(f"{where}: {name!r} must be 'module:name' or 'file.py:name' (relative to the recipe)")
    return container, attribute


def _import(recipe: Recipe, where: str, container: str) -> ModuleType:
    try:
        if container.endswith(".py"):
            return _import_file(container, recipe.resolve(container), _read(recipe, where, container))
        return importlib.import_module(container)
    except RecipeError:
        raise
    except Exception as error:  # importing runs the user's code
        text = "".join(traceback.format_exception(error))
        raise _not_importable(where, container, f"{type(error).__name__}: {error}", text) from error


def _import_file(container: str, path: str, source: bytes) -> ModuleType:
    """Import a file under a name made of its path and content; its neighbours can be imported while that runs."""
    key = hashlib.sha256(path.encode() + b"\0" + source).hexdigest()[:16]
    name = f"_zephon_vl_user_{Path(container).stem}_{key}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    directory = str(Path(path).parent)
    sys.modules[name] = module  # dataclasses and pickling look there
    sys.path.insert(0, directory)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(directory)
    return module


def _read(recipe: Recipe, where: str, container: str) -> bytes:
    path = recipe.resolve(container)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RecipeError(
            f"{where}: cannot read {path}: {error.strerror}; give a path relative to the recipe"
        ) from error


def _not_importable(where: str, container: str, why: str, trace: str = "") -> RecipeError:
    return RecipeError(
        f"{where}: cannot import {container!r}: {why}. A module must be importable where the run starts (PYTHONPATH), "
        "a file is given with its suffix .py" + (f"\n{trace}" if trace else "")
    )
