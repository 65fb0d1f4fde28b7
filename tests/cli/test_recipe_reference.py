"""docs/recipe.md names every field with its default, as the code has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from zephon_vl.presets import PRESETS
from zephon_vl.recipe import PackingConfig, PhaseConfig, Recipe, SourceConfig, TokenizerConfig, VisionConfig
from zephon_vl.sources.schemas import ROLES

PAGE = (Path(__file__).parents[2] / "docs" / "recipe.md").read_text()


def rows(heading: str) -> dict[str, list[str]]:
    """The first table below a heading: its rows by field."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    cells = [re.split(r"(?<!\\) *\| *", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
    return {name: row[1:] for row in cells for name in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("Top level", Recipe),
        ("`[tokenizer]`", TokenizerConfig),
        ("`[vision]`", VisionConfig),
        ("`[packing]`", PackingConfig),
        ("`[[sources]]`", SourceConfig),
        ("`[[phases]]`", PhaseConfig),
    ],
)
def test_every_field_is_there_with_its_default(heading: str, table: type[msgspec.Struct]) -> None:
    documented = rows(heading)
    fields = {field.name: field for field in msgspec.structs.fields(table) if field.name != "base_dir"}
    assert set(documented) == set(fields)
    for name, field in fields.items():
        default = documented[name][1]
        if field.required:
            assert default == "required"
        elif isinstance(field.default, str | int | float):
            assert default == f"`{json.dumps(field.default)}`"
        else:
            assert default != "required"


def test_every_preset_and_every_key_of_fields_is_there() -> None:
    assert all(f"`{preset}`" in rows("`[vision]`")["preset"][2] for preset in PRESETS)
    schemas = PAGE.split("\n### Schemas\n")[1].split("\n### ")[0]
    for schema, roles in ROLES.items():
        assert f"`{schema}`" in schemas
        for role, names in roles.items():
            assert all(f"`{name}`" in schemas for name in (role, *names))
