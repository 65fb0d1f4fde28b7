"""The identity of a run: what must be the same for a checkpoint to go on exactly, compared field by field.

Free to change: ranks, workers, microbatch size, prefetch, memory limits, the directories that data, tokenizer and chat
template lie in, and `max_bad_share`, which stops a run but decides no byte.
Planned changes are compared up to the checkpoint only: phases, skipped steps and sources that only matter after it may
come, go and change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from zephon_vl.contracts import SourceReader
from zephon_vl.errors import StateError
from zephon_vl.recipe import Recipe
from zephon_vl.sealed import seal, unseal

_MAGIC = b"zvid"
_VERSION = 1
_UNKNOWN = "not looked at"
"""Where the recipe did not ask for it: such a field agrees with any."""
_PARTS = {
    "recipe": "Resume with the recipe of the saved run, or start a new one",
    "data": "Restore the shards as they were, or start a new run on the changed data",
    "tokenizer": "Use the tokenizer of the saved run",
    "image_code": 'Install the saved versions, or accept other pixels with allow=["image_code"]',
    "operators": 'Restore the operators\' source, or accept other samples with allow=["operators"]',
}
"""The parts that are compared, and what to do where one differs. Each name may be given to `allow`."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared, by part."""

    recipe: dict[str, Any]
    data: dict[str, Any]
    tokenizer: dict[str, Any]
    image_code: dict[str, Any]
    operators: dict[str, Any]

    def encode(self) -> bytes:
        return seal(_MAGIC, _VERSION, msgspec.json.encode(self, order="sorted"))


def identity_of(
    recipe: Recipe,
    sources: Sequence[SourceReader],
    tokenizer: str,
    image_code: Mapping[str, str],
    operators: Mapping[str, Mapping[str, str]],
) -> Identity:
    """The identity of a run.

    Args:
        sources: opened.
        tokenizer: fingerprint of the vocabulary and chat template.
        image_code: libraries and versions that decide pixels; empty for text.
        operators: SHA-256 of the source files of a user's operators, by source and path.
    """
    return Identity(
        recipe=_portable(recipe),
        data={source.name: _describe(source) for source in sources},
        tokenizer={"fingerprint": tokenizer},
        image_code=dict(image_code),
        operators={source: dict(files) for source, files in operators.items()},
    )


def check_identity(saved: bytes, current: Identity, step: int, allow: Collection[str] = ()) -> None:
    """Compare a saved identity with this run's.

    Args:
        step: of the checkpoint: the first that nothing was delivered of.
        allow: parts that may differ.

    Raises:
        StateError: naming each field that differs, both values and the remedy; or that `saved` is damaged.
        ValueError: for a name in `allow` that is no part of an identity.
    """
    allow = [allow] if isinstance(allow, str) else allow
    unknown = set(allow) - set(_PARTS)
    if unknown:
        raise ValueError(f"allow has {sorted(unknown)}, but may have {sorted(_PARTS)}")
    before = msgspec.json.decode(unseal(_MAGIC, _VERSION, saved, "the identity in the state"), type=Identity)
    past, now = _up_to(before, step), _up_to(current, step)
    problems = [
        f"{part} differs:\n" + "\n".join(differences) + f"\n  {remedy}."
        for part, remedy in _PARTS.items()
        if part not in allow and (differences := _differences(getattr(past, part), getattr(now, part)))
    ]
    if problems:
        raise StateError("this run is not the one that was saved. " + "\n".join(problems))


def _up_to(identity: Identity, step: int) -> Identity:
    """The identity without what only matters from `step` on, its parts flat."""
    table = dict(identity.recipe)
    phases = {str(phase["from_step"]): phase for phase in table["phases"] if phase["from_step"] < step}
    skips = _joined([first, min(stop, step)] for first, stop in table["skip_steps"] if first < step)
    names, planned = list(table["source_order"]), list[str]()
    # The last ones only: their place is their number in a lane's state.
    while names and not _used(names[-1], table["sources"], phases.values()):
        planned.append(names.pop())
    phases = {first: {**phase, "weights": _without(planned, phase["weights"])} for first, phase in phases.items()}
    sources = _without(planned, table["sources"])
    table |= {"phases": phases, "skip_steps": skips, "sources": sources, "source_order": names}
    return Identity(
        recipe=dict(_flatten("", table)),
        data=dict(_flatten("", _without(planned, identity.data))),
        tokenizer=identity.tokenizer,
        image_code=identity.image_code,
        operators=dict(_flatten("", _without(planned, identity.operators))),
    )


def _joined(ranges: Iterable[list[int]]) -> list[list[int]]:
    """The same steps in as few ranges as they can be."""
    joined: list[list[int]] = []
    for first, stop in ranges:
        if joined and joined[-1][1] == first:
            joined[-1][1] = stop
        else:
            joined.append([first, stop])
    return joined


def _used(name: str, sources: Mapping[str, Any], phases: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a source has had a weight in any of the phases."""
    return any(weight > 0 for weight in (sources[name]["weight"], *(p["weights"].get(name, 0) for p in phases)))


def _without(names: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    missing = "absent"
    return [
        f"  {field}: saved {saved.get(field, missing)!r}, now {current.get(field, missing)!r}"
        for field in sorted(saved.keys() | current.keys())
        if saved.get(field, missing) != current.get(field, missing)
        and _UNKNOWN not in (saved.get(field), current.get(field))
    ]


def _portable(recipe: Recipe) -> dict[str, Any]:
    """The recipe without what may change: paths (the data part names the shards), and what decides no data."""
    table = msgspec.json.decode(msgspec.json.encode(recipe))
    del table["base_dir"], table["identify_by"], table["max_bad_share"]
    del table["tokenizer"]["path"], table["tokenizer"]["chat_template"]  # the fingerprint has what they hold
    table["sources"] = {source.pop("name"): source for source in table["sources"]}
    for source in table["sources"].values():
        del source["path"], source["image_root"]
    table["source_order"] = list(table["sources"])
    return table


def _flatten(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [item for key, inner in value.items() for item in _flatten(f"{prefix}.{key}".lstrip("."), inner)]
    return [(prefix, value)]


def _describe(source: SourceReader) -> dict[str, Any]:
    shards = source.fingerprint()
    sums = [sha256 for *_, sha256 in shards]
    return {
        "shards": len(shards),
        "bytes": sum(size for _, size, _, _ in shards),
        "samples": sum(count for _, _, count, _ in shards),
        "names, bytes and samples of each": _digest([shard[:3] for shard in shards]),
        "contents": _digest(sums) if all(sums) else _UNKNOWN,
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:16]
