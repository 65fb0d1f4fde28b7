"""Small types that several commands take."""

from __future__ import annotations

import re

from zephon_vl.errors import ZephonError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


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
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if match is None:
        raise ZephonError(f"--memory-limit is {text!r}, but must be bytes, or e.g. 4GB or 512MiB")
    return int(float(match.group(1)) * _UNITS[match.group(2) or ""])


def bytes_text(size: float) -> str:
    """A size as a person reads it."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
