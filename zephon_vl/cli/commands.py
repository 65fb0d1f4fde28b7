"""The commands of `zephon-vl`, and how words become one of them."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Sequence
from typing import Annotated, Protocol, Union

import tyro

from zephon_vl.cli.digest import Digest
from zephon_vl.cli.explain import Explain
from zephon_vl.cli.index import Index
from zephon_vl.cli.inspect import Inspect
from zephon_vl.cli.ledger import Ledger
from zephon_vl.cli.run import Run
from zephon_vl.errors import ZephonError

COMMANDS = {"index": Index, "explain": Explain, "run": Run, "digest": Digest, "inspect": Inspect, "ledger": Ledger}
_ANY = Union[tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items())]  # noqa: UP007
_DESCRIPTION = (
    "Vision-language training data: build indexes, explain a recipe, run it, prove its digests, look at a step, "
    "compare what two runs delivered. "
    "Every command takes --debug, which shows tracebacks; --version prints the version."
)


class Command(Protocol):
    """A command with its options."""

    def run(self) -> int:
        """Do it; returns the exit status. Raises `ZephonError`, `OSError`."""
        ...


def parse(words: Sequence[str]) -> Command:
    """The command that the words mean.

    Raises:
        ZephonError: for words that mean none, with what is wrong with them.
        SystemExit: with 0, after a help text.
    """
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(_ANY, prog="zephon-vl", description=_DESCRIPTION, args=words or ["--help"])  # type: ignore[arg-type]
    except SystemExit as end:
        if not end.code:
            raise
    sentence = _sentence(errors.getvalue()).rstrip(".")
    known = f"{words[0]} " if words[0] in COMMANDS else ""
    raise ZephonError(f"{sentence}; see zephon-vl {known}--help")


def _sentence(box: str) -> str:
    """What a box of tyro's says: the text between its title and its next rule, on one line."""
    rows = re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]
    texts = [row.strip("│ ") for row in itertools.dropwhile(_is_rule, rows)]
    return " ".join(text for text in itertools.takewhile(lambda text: not _is_rule(text), texts) if text)


def _is_rule(row: str) -> bool:
    return re.fullmatch("[─-]+", row.strip("│╰╯ ")) is not None
