"""Where a command puts an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from zephon_vl.cli.options import bytes_text
from zephon_vl.errors import ZephonError

PageOut = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help="The HTML file; default: step-N.html here.")]
MaxSequences = Annotated[int | None, tyro.conf.arg(metavar="K", help="Show only the first K sequences.")]


def page_path(out: Path | None, step: int) -> Path:
    """The file to write. Raises `ZephonError` for one that cannot be."""
    out = out or Path(f"step-{step}.html")
    if out.is_dir() or not out.parent.is_dir():
        wrong = out if out.is_dir() else out.parent
        raise ZephonError(f"--out is {out}, but {wrong} is {'a' if out.is_dir() else 'no'} directory; name a file")
    return out


def write_page(out: Path, html: str) -> None:
    """Write it, and say where it is."""
    # A file name may hold bytes that are no text.
    data = html.encode(errors="replace")
    out.write_bytes(data)
    Console(soft_wrap=True).print(f"{out} ({bytes_text(len(data))})", markup=False, highlight=False)
