"""Finds the parts of a schema in a record, by the names that a source gives them."""

from __future__ import annotations

from typing import Any

from zephon_vl.errors import BadSample
from zephon_vl.sources.images import kind
from zephon_vl.sources.records import Record


class FieldNames:
    """For each part of the schema the fields that it may be in, in order of preference."""

    def __init__(self, candidates: dict[str, tuple[str, ...]]) -> None:
        self.candidates = candidates

    def every(self) -> set[str]:
        """All fields that matter."""
        return {name for names in self.candidates.values() for name in names}

    def get(self, record: Record, role: str) -> tuple[str, Any] | None:
        """(field, value) of the first field that is there and not null."""
        fields = record.fields
        for name in self.candidates[role]:
            value = fields.get(name)
            if value is not None:
                return name, value
        return None

    def find(self, record: Record, role: str) -> tuple[str, Any]:
        """As `get`. Raises `BadSample` if there is none."""
        found = self.get(record, role)
        if found is None:
            raise BadSample(f"{self.describe(role)} is missing; {record.describe()}")
        return found

    def text(self, record: Record, role: str) -> tuple[str, str]:
        """A string. Raises `BadSample`."""
        name, value = self.find(record, role)
        if not isinstance(value, str):
            raise BadSample(f"field {name!r} is {kind(value)}, but must be a string")
        return name, value

    def list(self, record: Record, role: str) -> tuple[str, list[Any]]:
        """A list. Raises `BadSample`."""
        name, value = self.find(record, role)
        if not isinstance(value, list):
            raise BadSample(f"field {name!r} is {kind(value)}, but must be a list")
        return name, value

    def describe(self, role: str) -> str:
        return "field " + " or ".join(repr(name) for name in self.candidates[role])
