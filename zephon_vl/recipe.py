"""The recipe: everything that decides the data, as frozen typed objects and as a TOML file.

Two runs with equal recipes and equal data see equal global batches. What does not decide the data (ranks, workers,
microbatch size, prefetch, memory limit) is an argument of `Loader` instead.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from zephon_vl.errors import RecipeError

Schema = Literal["text", "caption", "interleaved", "chat"]
Order = Literal["global", "blocks", "none"]
WeightBy = Literal["tokens", "samples"]


_MOST = {"lanes": 1 << 16, "seq_len": 1 << 24, "global_batch_size": 1 << 20}
"""Far beyond any run, and still served; a slip of the keyboard would only look like a hang."""
_MOST_WEIGHT = 1e9
_MOST_STEPS = 1 << 40


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the recipe: unknown keys are errors."""


class TokenizerConfig(_Section, frozen=True, kw_only=True):
    """Where the vocabulary lies and how documents end."""

    path: str
    """A directory or file that `transformers` or `tokenizers` loads. Relative to the recipe."""
    add_bos: bool | None = None
    """Put the tokenizer's bos token before each document that is not a chat. None: as the tokenizer itself does."""
    add_eos: bool = True
    """Put the tokenizer's eos token after each document that is not a chat (a chat ends as its template says)."""
    chat_template: str | None = None
    """A Jinja file that replaces the tokenizer's own chat template. Relative to the recipe."""


class VisionConfig(_Section, frozen=True, kw_only=True):
    """Image rules: a preset and what to change in it. None leaves the preset's value."""

    preset: str
    min_pixels: int | None = None
    """Images are enlarged to at least this many pixels."""
    max_pixels: int | None = None
    """Images are reduced to at most this many pixels."""
    max_source_pixels: int = 178_956_970
    """Images with more pixels in the file are bad samples; checked in the header, before decoding. The default is
    where Pillow raises `DecompressionBombError`."""
    image_token: str | None = None
    video_token: str | None = None
    vision_start_token: str | None = None
    vision_end_token: str | None = None


class PackingConfig(_Section, frozen=True, kw_only=True):
    """How documents become sequences."""

    algorithm: Literal["best_fit", "first_fit", "concat"] = "best_fit"
    open_sequences: int = 8
    """Open sequences per lane that a document may be placed in. `concat` has one."""
    overlong: Literal["truncate", "split", "drop"] = "truncate"
    """What happens to a document longer than a sequence; never inside an image's tokens."""


class SourceConfig(_Section, frozen=True, kw_only=True):
    """One dataset."""

    name: str
    path: str | tuple[str, ...]
    """Shards: a path, brace or glob pattern, or several. Relative to the recipe. The suffix tells the format."""
    schema: Schema
    weight: float = 1.0
    """Share of the training tokens (or samples, see `Recipe.weight_by`), relative to the other sources."""
    order: Order = "global"
    """`global`: one permutation of all samples; `blocks`: blocks that are cheap to read in sequence are permuted, and
    samples within a window of blocks; `none`: as stored."""
    block_window: int = 8
    """Blocks over which `order = "blocks"` permutes samples."""
    fields: dict[str, str] = {}
    """Where the schema finds its parts in a record, where that differs from the default, e.g. `text = "body"`."""
    image_root: str | None = None
    """Directory of images named by relative paths. Relative to the recipe; default: the shard's own directory."""
    operators: tuple[dict[str, Any], ...] = ()
    """A user's operators for this source, e.g. `{ use = "filter", function = "my_ops.py:keep" }`."""


class PhaseConfig(_Section, frozen=True, kw_only=True):
    """Planned changes from a step on, on top of those of the phases before. What is not named stays as it is."""

    from_step: int
    """The first step that they hold for."""
    weights: dict[str, float] = {}
    """New weights, by source: one that was 0 comes in, one that is 0 now is retired. Shares count from here on."""
    seq_len: int | None = None
    """Tokens per sequence. Documents in open sequences are packed anew."""
    global_batch_size: int | None = None
    """Packed sequences per optimizer step."""


class Recipe(_Section, frozen=True, kw_only=True):
    """Everything that decides the data.

    Raises:
        RecipeError: from `validate` (called by `load_recipe` and `Loader`), naming field, values and remedy.
    """

    lanes: int
    """Logical data streams, fixed for the run: the largest number of ranks that it can use."""
    global_batch_size: int
    """Packed sequences per optimizer step; a multiple of `lanes`."""
    seq_len: int
    """Tokens per sequence."""
    tokenizer: TokenizerConfig
    sources: tuple[SourceConfig, ...]
    seed: int = 0
    vision: VisionConfig | None = None
    """None for text only."""
    packing: PackingConfig = PackingConfig()
    weight_by: WeightBy = "tokens"
    repeat: bool = True
    """False: the run ends when every source has been used exactly once (validation)."""
    identify_by: Literal["sizes", "contents"] = "sizes"
    """What a checkpoint knows the data by: names, sizes and sample counts of the shards, or also their SHA-256, for
    which each version of a shard is read once."""
    max_bad_share: float = 0.05
    """The run stops when more than this share of a source's samples is bad (looked at from 100 samples on)."""
    operators: tuple[dict[str, Any], ...] = ()
    """A user's operators for every source; they come after those of the source."""
    phases: tuple[PhaseConfig, ...] = ()
    """Planned changes, in order of their `from_step`."""
    skip_steps: tuple[tuple[int, int], ...] = ()
    """Steps to leave out, as (first, first not left out any more). All others keep their number and their bytes."""
    pipeline: str | None = None
    """`module:object` of the pipeline. None: vision-language with `[vision]`, else text."""
    base_dir: str = "."
    """Directory that relative paths start from: the recipe file's own. Not part of what decides the data."""

    def resolve(self, path: str) -> str:
        """An absolute path or URL for a path of the recipe."""
        if "://" in path:
            return path
        return str((Path(self.base_dir) / path).absolute())

    def validate(self) -> None:
        """Check types, which Python does not, and what types alone cannot say. Raises `RecipeError`."""
        try:
            msgspec.convert(msgspec.to_builtins(self, enc_hook=_refuse), Recipe)
        except msgspec.ValidationError as error:
            raise RecipeError(_explain(error)) from error
        sizes = {"lanes": self.lanes, "seq_len": self.seq_len, "global_batch_size": self.global_batch_size}
        for name, value in sizes.items():
            _require(1 <= value <= _MOST[name], name, value, f"from 1 to {_MOST[name]:,}")
        _require(-(2**63) <= self.seed < 2**63, "seed", self.seed, "a 64-bit integer")
        _require(
            self.global_batch_size % self.lanes == 0 and self.global_batch_size >= 1,
            "global_batch_size",
            self.global_batch_size,
            f"a multiple of lanes ({self.lanes}), since every lane gives the same number of sequences to each step; "
            f"the nearest are {_nearest_multiples(self.global_batch_size, self.lanes)}",
        )
        _require(0 <= self.max_bad_share <= 1, "max_bad_share", self.max_bad_share, "between 0 and 1")
        _require(self.packing.open_sequences >= 1, "packing.open_sequences", self.packing.open_sequences, "at least 1")
        _require(len(self.sources) > 0, "sources", "none", "at least one [[sources]] table")
        self._validate_sources()
        if self.vision is not None:
            self._validate_vision(self.vision)
        self._validate_phases()
        self._validate_skips()

    def of_phases(self) -> tuple[Recipe, ...]:
        """The recipe of every phase by itself: this one without its changes, then with one phase after the other."""
        recipes = [msgspec.structs.replace(self, phases=(), skip_steps=())]
        for phase in self.phases:
            changed: dict[str, Any] = {}
            if phase.seq_len is not None:
                changed["seq_len"] = phase.seq_len
            if phase.global_batch_size is not None:
                changed["global_batch_size"] = phase.global_batch_size
            changed["sources"] = tuple(
                msgspec.structs.replace(source, weight=phase.weights.get(source.name, source.weight))
                for source in recipes[-1].sources
            )
            recipes.append(msgspec.structs.replace(recipes[-1], **changed))
        return tuple(recipes)

    def _validate_phases(self) -> None:
        before, names = 0, [source.name for source in self.sources]
        for i, phase in enumerate(self.phases):
            at = f"phases[{i}]"
            allowed = f"from {before + 1} to {_MOST_STEPS:,}: phases stand in order, the recipe itself holds from 0"
            _require(before < phase.from_step <= _MOST_STEPS, f"{at}.from_step", phase.from_step, allowed)
            before = phase.from_step
            for name in phase.weights:
                _require(name in names, f"{at}.weights", name, f"the name of a source: {', '.join(names)}")
            changes = phase.weights or phase.seq_len is not None or phase.global_batch_size is not None
            _require(bool(changes), at, "empty", "a change of weights, seq_len or global_batch_size")
        recipes = self.of_phases() if self.phases else ()
        for i, (earlier, recipe) in enumerate(itertools.pairwise(recipes)):
            try:
                recipe.validate()
            except RecipeError as error:
                raise RecipeError(f"phases[{i}]: {error}") from error
            for old, new in zip(earlier.sources, recipe.sources, strict=True):
                _require(
                    self.repeat or (old.weight > 0) == (new.weight > 0),
                    f"phases[{i}].weights.{old.name}",
                    new.weight,
                    f"{'above 0' if old.weight else '0'} as before: with repeat = false the run ends when every source "
                    "was used once, so none can come in or be retired",
                )

    def _validate_skips(self) -> None:
        before = 0
        for i, (first, stop) in enumerate(self.skip_steps):
            _require(
                before <= first < stop <= _MOST_STEPS,
                f"skip_steps[{i}]",
                [first, stop],
                f"[first, stop] with {before} <= first < stop; step stop is the first that is not left out, and "
                "ranges stand in order",
            )
            before = stop

    def _validate_sources(self) -> None:
        seen: set[str] = set()
        for i, source in enumerate(self.sources):
            at = f"sources[{i}]"
            _require(source.name not in seen and source.name != "", f"{at}.name", source.name, "unique and not empty")
            seen.add(source.name)
            _require(0 <= source.weight <= _MOST_WEIGHT, f"{at}.weight", source.weight, f"from 0 to {_MOST_WEIGHT:g}")
            _require(source.block_window >= 1, f"{at}.block_window", source.block_window, "at least 1")
            _require(len(source.path) > 0 and all(source.path), f"{at}.path", source.path, "a path or pattern")
            if self.vision is None:
                _require(
                    source.schema in ("text", "chat"),
                    f"{at}.schema",
                    source.schema,
                    '"text" or "chat" in a recipe without [vision]; add [vision] with a preset to load images',
                )
            _validate_operators(f"{at}.operators", source.operators)
        _require(any(s.weight > 0 for s in self.sources), "sources", "all weights 0", "at least one weight above 0")
        _validate_operators("operators", self.operators)

    def _validate_vision(self, vision: VisionConfig) -> None:
        from zephon_vl.presets import resolve_vision

        _require(vision.max_source_pixels >= 1, "vision.max_source_pixels", vision.max_source_pixels, "at least 1")
        image = resolve_vision(vision)
        least = image.min_tokens + 2
        _require(
            self.seq_len >= least,
            "seq_len",
            self.seq_len,
            f"at least {least}: the smallest image of preset {vision.preset!r} and its two delimiters",
        )
        most = image.max_tokens + 2
        if self.seq_len < most:
            limit = image.max_pixels_for(self.seq_len - 2)
            lower = f"lower vision.max_pixels to at most {limit}" if limit else "lower vision.min_pixels"
            raise RecipeError(
                f"vision.max_pixels is {image.max_pixels}, so an image may take {most} tokens with delimiters, but "
                f"seq_len is {self.seq_len}: an image must fit in a sequence. Raise seq_len, or {lower}"
            )


def load_recipe(path: str | Path) -> Recipe:
    """Read, check and return a recipe file; relative paths in it start from its directory.

    Raises:
        RecipeError: with the path of the field and what is allowed.
    """
    path = Path(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from error
    try:
        table = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not valid TOML: {error}") from error
    if "base_dir" in table:
        raise RecipeError(f"{path}: base_dir cannot be set in a recipe file; paths start from the file's directory")
    try:
        recipe = msgspec.convert({**table, "base_dir": str(path.parent.absolute())}, Recipe)
        recipe.validate()
    except msgspec.ValidationError as error:
        raise RecipeError(f"{path}: {_explain(error)}") from error
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error
    return recipe


def _require(ok: bool, field: str, value: object, allowed: str) -> None:
    if not ok:
        raise RecipeError(f"{field} is {value!r}, but must be {allowed}")


def _refuse(value: object) -> None:
    kind = type(value)
    raise RecipeError(
        f"the recipe holds {value!r}, of type {kind.__module__}.{kind.__qualname__}, but must be made of strings, "
        "numbers, booleans, lists and dicts: convert it"
    )


def _validate_operators(at: str, tables: tuple[dict[str, Any], ...]) -> None:
    """They reach workers as MessagePack: what comes out of it changed would differ from one process to another."""
    for j, table in enumerate(tables):
        _require("use" in table, f"{at}[{j}]", table, 'a table with the key "use"')
        try:
            same = msgspec.msgpack.decode(msgspec.msgpack.encode(table)) == table
        except OverflowError:
            same = False
        plain = "made of strings, booleans, lists, tables and numbers of 64 bits; no dates, no nan, no tuples"
        _require(same, f"{at}[{j}]", table, plain)


def _nearest_multiples(value: int, of: int) -> str:
    low = value // of * of
    return f"{low} and {low + of}" if low > 0 else str(of)


_TABLES: dict[str, type[_Section]] = {
    "": Recipe,
    "tokenizer": TokenizerConfig,
    "vision": VisionConfig,
    "packing": PackingConfig,
    "sources": SourceConfig,
    "phases": PhaseConfig,
}


def _explain(error: msgspec.ValidationError) -> str:
    """msgspec's message with the field's path in front, and what is allowed where a key or a value is unknown."""
    what, _, at = str(error).partition(" - at `")
    where = re.sub(r"^\$\.?", "", at.rstrip("`"))
    what = re.sub(r"^Object ", "", what)
    what = what[0].lower() + what[1:]
    if unknown := re.search(r"unknown field `(.+?)`", what):
        return _explain_key(where, unknown.group(1))
    if unknown := re.search(r"^invalid enum value (.+)", what):
        table, _, field = where.rpartition(".")
        allowed = get_args(get_type_hints(_table_at(table))[field])
        return f"{where} is {unknown.group(1)}, but must be one of {', '.join(allowed)}"
    return f"{where or 'the recipe'}: {what.replace(' | null', '').replace('`object`', '`table`')}"


def _explain_key(where: str, key: str) -> str:
    known = _keys(_table_at(where))
    homes = [table for table, section in _TABLES.items() if key in _keys(section)]
    places = " or ".join(f"in {table}" if table else "at the top of the recipe" for table in homes)
    hint = f"; {key!r} belongs {places}" if homes else ""
    return f"{where + '.' if where else ''}{key}: unknown key; allowed here: {', '.join(known)}{hint}"


def _table_at(where: str) -> type[_Section]:
    return _TABLES[re.sub(r"\[.*", "", where)]


def _keys(section: type[_Section]) -> list[str]:
    return [name for name in section.__struct_fields__ if name != "base_dir"]
