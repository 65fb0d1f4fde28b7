"""The identity of a run: what must be the same for a checkpoint to go on exactly, compared field by field.

Free to change: ranks, workers, microbatch size, prefetch, memory limits, and the directories that the data lies in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from zephon_vl.contracts import SourceReader
from zephon_vl.errors import StateError
from zephon_vl.recipe import Recipe

_PARTS = {
    "recipe": "Resume with the recipe of the saved run, or start a new one",
    "data": "Restore the shards as they were, or start a new run on the changed data",
    "tokenizer": "Use the tokenizer of the saved run",
    "image_code": 'Install the saved versions, or accept other pixels with allow=["image_code"]',
    "operators": 'Restore the operators\' source, or accept other samples with allow=["operators"]',
}
"""The parts that are compared, and what to do where one differs. Each name may be given to `allow`."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Flat maps from a field's path to its value, by part."""

    recipe: dict[str, Any]
    data: dict[str, Any]
    tokenizer: dict[str, Any]
    image_code: dict[str, Any]
    operators: dict[str, Any]

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="sorted")


def identity_of(
    recipe: Recipe,
    sources: Sequence[SourceReader],
    tokenizer: str,
    image_code: Mapping[str, str],
    operators: Mapping[str, str],
) -> Identity:
    """The identity of a run.

    Args:
        sources: opened.
        tokenizer: fingerprint of the vocabulary and chat template.
        image_code: libraries and versions that decide pixels; empty for text.
        operators: SHA-256 of the source files of a user's operators, by path.
    """
    return Identity(
        recipe=dict(_flatten("", _portable(recipe))),
        data={source.name: _describe(source) for source in sources},
        tokenizer={"fingerprint": tokenizer},
        image_code=dict(image_code),
        operators=dict(operators),
    )


def check_identity(saved: bytes, current: Identity, allow: Collection[str] = ()) -> None:
    """Compare a saved identity with this run's.

    Raises:
        StateError: naming each field that differs, both values and the remedy; or that `saved` is damaged.
        ValueError: for a name in `allow` that is no part of an identity.
    """
    unknown = set(allow) - set(_PARTS)
    if unknown:
        raise ValueError(f"allow has {sorted(unknown)}, but may have {sorted(_PARTS)}")
    try:
        before = msgspec.json.decode(saved, type=Identity)
    except msgspec.DecodeError as error:
        raise StateError(f"the identity in the state is damaged or not of this library: {error}") from error
    problems = [
        f"{part} differs:\n" + "\n".join(differences) + f"\n  {remedy}."
        for part, remedy in _PARTS.items()
        if part not in allow and (differences := _differences(getattr(before, part), getattr(current, part)))
    ]
    if problems:
        raise StateError("this run is not the one that was saved. " + "\n".join(problems))


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    missing = "absent"
    return [
        f"  {field}: saved {saved.get(field, missing)!r}, now {current.get(field, missing)!r}"
        for field in sorted(saved.keys() | current.keys())
        if saved.get(field, missing) != current.get(field, missing)
    ]


def _portable(recipe: Recipe) -> dict[str, Any]:
    """The recipe without what may change: directories (the data part names the shards)."""
    table = msgspec.json.decode(msgspec.json.encode(recipe))
    del table["base_dir"], table["tokenizer"]["path"]
    table["sources"] = {source.pop("name"): source for source in table["sources"]}
    for source in table["sources"].values():
        del source["path"], source["image_root"]
    table["source_order"] = list(table["sources"])
    return table


def _flatten(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [item for key, inner in value.items() for item in _flatten(f"{prefix}.{key}".lstrip("."), inner)]
    return [(prefix, value)]


def _describe(source: SourceReader) -> str:
    shards = source.fingerprint()
    digest = hashlib.sha256(msgspec.json.encode(shards)).hexdigest()[:16]
    size, count = sum(shard[1] for shard in shards), sum(shard[2] for shard in shards)
    return f"{len(shards)} shards, {size} bytes, {count} samples (names, sizes and counts: {digest})"
