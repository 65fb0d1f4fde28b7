"""Options that several commands take, and how their values are read and shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import tyro

from zephon_vl.errors import ZephonError

RecipePath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RECIPE", help="A recipe file.")]
Ranks = Annotated[int, tyro.conf.arg(metavar="D", help="Data-parallel ranks of the job.")]
MicrobatchSize = Annotated[int, tyro.conf.arg(metavar="M", help="Sequences per microbatch.")]
Workers = Annotated[int, tyro.conf.arg(metavar="W", help="Worker processes of each rank; 0 does it all in this one.")]
Prefetch = Annotated[int, tyro.conf.arg(metavar="P", help="Microbatches to have ready beyond the one in use.")]
MemoryLimit = Annotated[
    str | None, tyro.conf.arg(metavar="SIZE", help="Most memory for the buffers of a rank, e.g. 4GB or 512MiB.")
]

# No Path: it would make a directory "s3:" of a URL.
LedgerPath = Annotated[
    str | None, tyro.conf.arg(metavar="DIR", help="Record what is delivered in this directory; see zephon-vl ledger.")
]

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_steps(text: str) -> range:
    """`A:B`, or `B` for `0:B`. Raises `ZephonError`."""
    match = re.fullmatch(r"(?:(\d+):)?(\d+)", text.strip())
    steps = range(int(match.group(1) or 0), int(match.group(2))) if match else range(0)
    if not steps:
        raise ZephonError(f"--steps is {text!r}, but must be A:B with A below B, or B for 0:B, e.g. 0:10")
    return steps


def parse_bytes(text: str | None) -> int | None:
    """`4GB`, `512MiB` or plain bytes. Raises `ZephonError`."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.strip().lower())
    if match is None:
        raise ZephonError(f"--memory-limit is {text!r}, but must be bytes, or e.g. 4GB or 512MiB")
    return int(float(match.group(1)) * _UNITS[match.group(2) or ""])


def require_at_least(option: str, value: int | None, least: int) -> None:
    """Raises `ZephonError` for a value below `least`; None is fine."""
    if value is not None and value < least:
        raise ZephonError(f"{option} is {value}, but must be at least {least}")


def bytes_text(size: float) -> str:
    """A size as a person reads it."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
