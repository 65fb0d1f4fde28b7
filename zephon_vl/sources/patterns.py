"""From the path of a recipe to a sorted list of shards."""

from __future__ import annotations

import glob
import os
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zephon_vl.errors import SourceError
from zephon_vl.sources.storage import filesystem, is_url, local_path

if TYPE_CHECKING:
    from zephon_vl.recipe import Recipe, SourceConfig

SUFFIXES = {
    ".tar": "tar",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl.gz",
    ".ndjson.gz": "jsonl.gz",
    ".jsonl.zst": "jsonl.zst",
    ".ndjson.zst": "jsonl.zst",
    ".parquet": "parquet",
}
INDEX_SUFFIX = ".zvlindex"
_KNOWN = ".tar (WebDataset), .jsonl or .ndjson (also with .gz or .zst), .parquet"
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class ShardSet:
    """The shards of one source."""

    root: str
    """Directory or URL that contains them all; the names start from it."""
    shards: tuple[tuple[str, str], ...]
    """(name relative to `root`, absolute path or URL), sorted by name."""
    format: str
    """"tar", "jsonl" or "parquet"."""


def find_shards(recipe: Recipe, source: SourceConfig) -> ShardSet:
    """Expand braces and globs of `source.path`, relative to the recipe.

    Raises:
        SourceError: nothing matches, a shard named in full is missing, or the format is unknown or not one.
    """
    patterns = (source.path,) if isinstance(source.path, str) else source.path
    paths: set[str] = set()
    parents: list[str] = []
    for pattern in patterns:
        found = _find_remote(source, pattern) if is_url(pattern) else _find_local(recipe, source, pattern)
        parents.append(found[0])
        paths.update(found[1])
    root = _common_parent(parents)
    shards = sorted({_relative(path, root): path for path in paths}.items())
    return ShardSet(root=root, shards=tuple(shards), format=_common_format(source, [path for _, path in shards]))


def shard_kind(path: str) -> str | None:
    """Format and compression from the suffix, e.g. "jsonl.gz"; None if unknown."""
    name = posixpath.basename(path).lower()
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return SUFFIXES[suffix]
    return None


def expand_braces(pattern: str) -> list[str]:
    """`a{0..2}b{x,y}` to its six strings; zero-padded ranges keep their width, other braces stay as they are."""
    for match in _BRACES.finditer(pattern):
        options = _options(match.group(1))
        if options is not None:
            head, tail = pattern[: match.start()], pattern[match.end() :]
            texts = (text for option in options for text in expand_braces(head + option + tail))
            return list(dict.fromkeys(texts))  # nested braces are met once for each option around them
    return [pattern]


def _options(inside: str) -> list[str] | None:
    numbers = _RANGE.fullmatch(inside)
    if numbers is not None:
        first, last, step = numbers.groups()
        padded = any(re.match(r"-?0\d", end) for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        low, high = int(first), int(last)
        stride = max(1, abs(int(step or 1))) * (1 if high >= low else -1)
        return [f"{n:0{width}d}" for n in range(low, high + stride // abs(stride), stride)]
    return inside.split(",") if "," in inside else None


def _find_local(recipe: Recipe, source: SourceConfig, pattern: str) -> tuple[str, list[str]]:
    pattern = local_path(pattern)
    base = recipe.resolve(".")
    candidates = [pattern] if os.path.lexists(os.path.join(base, pattern)) else expand_braces(pattern)
    found: list[str] = []
    missing: list[str] = []
    for candidate in candidates:
        full = os.path.join(base, candidate)
        if os.path.isdir(full):
            raise SourceError(
                f"source {source.name!r}: path {pattern!r} is the directory {full}; add a pattern of its shards, "
                f'e.g. "{candidate.rstrip("/")}/*.tar"'
            )
        if os.path.lexists(full):
            found.append(full)
        elif _MAGIC.search(candidate):
            matches = glob.glob(candidate, root_dir=base, recursive=True)
            found += [os.path.join(base, match) for match in matches]
        else:
            missing.append(candidate)
    if dangling := next((path for path in found if os.path.islink(path) and not os.path.exists(path)), None):
        raise SourceError(
            f"source {source.name!r}: shard {dangling} is a link to {os.readlink(dangling)}, which is not there, "
            "and without it the data would be another. Restore the target or remove the link"
        )
    found = [path for path in found if os.path.isfile(path) and not path.endswith(INDEX_SUFFIX)]
    _require_matches(source, pattern, base, found, missing)
    return os.path.dirname(os.path.join(base, _static_prefix(pattern, found, base))), found


def _find_remote(source: SourceConfig, pattern: str) -> tuple[str, list[str]]:
    found: list[str] = []
    missing: list[str] = []
    for candidate in expand_braces(pattern):
        try:
            fs, path = filesystem(candidate)
        except (ValueError, ImportError) as error:
            raise SourceError(f"source {source.name!r}: path {pattern!r} cannot be opened: {error}") from error
        try:
            if _MAGIC.search(path):
                found += [fs.unstrip_protocol(match) for match in fs.glob(path)]
            elif fs.isfile(path):
                found.append(fs.unstrip_protocol(path))
            else:
                missing.append(candidate)
        except OSError as error:
            raise SourceError(f"source {source.name!r}: {candidate} cannot be listed: {error}") from error
    found = [path for path in found if not path.endswith(INDEX_SUFFIX)]
    _require_matches(source, pattern, "the storage", found, missing)
    static = re.split(r"[*?\[{]", pattern)[0]
    fs, path = filesystem(static[: static.rfind("/") + 1])
    return fs.unstrip_protocol(path), found


def _require_matches(source: SourceConfig, pattern: str, where: str, found: list[str], missing: list[str]) -> None:
    if missing and (found or len(missing) > 1):
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise SourceError(
            f"source {source.name!r}: {len(missing)} of the shards that path {pattern!r} names do not exist in "
            f"{where}: {shown}; add them, or use a pattern with * for those that do"
        )
    if not found:
        raise SourceError(
            f"source {source.name!r}: path {pattern!r} matches no file in {where}; check the path (it is relative to "
            f"the recipe file)"
        )


def _static_prefix(pattern: str, found: list[str], base: str) -> str:
    """The part before the first wildcard; the file itself if its name only looks like a pattern."""
    if os.path.join(base, pattern) in found:
        return pattern
    return re.split(r"[*?\[{]", pattern)[0]


def _common_parent(parents: list[str]) -> str:
    if any(is_url(parent) for parent in parents):
        first = parents[0]
        return first if all(parent == first for parent in parents) else ""
    return os.path.commonpath([os.path.normpath(parent) for parent in parents])


def _relative(path: str, root: str) -> str:
    if root == "":
        return path
    if is_url(root):
        return path[len(root) :].lstrip("/")
    return os.path.relpath(path, root)


def _common_format(source: SourceConfig, paths: list[str]) -> str:
    first: dict[str, str] = {}
    for path in paths:
        kind = shard_kind(path)
        if kind is None:
            raise SourceError(
                f"source {source.name!r}: the format of {path} is not known from its suffix; known are {_KNOWN}. "
                f"Narrow the pattern or rename the file"
            )
        first.setdefault(kind.partition(".")[0], path)
    if len(first) > 1:
        examples = " and ".join(f"{path} ({kind})" for kind, path in sorted(first.items()))
        raise SourceError(
            f"source {source.name!r}: its path matches shards of several formats: {examples}; make one source of each"
        )
    return next(iter(first))
