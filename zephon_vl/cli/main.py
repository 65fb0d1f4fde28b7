"""`zephon-vl`: build indexes, explain a recipe, run it, prove its digests, look at a step."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Union

import tyro
from rich.console import Console

from zephon_vl import __version__
from zephon_vl.cli.digest import Digest
from zephon_vl.cli.explain import Explain
from zephon_vl.cli.index import Index
from zephon_vl.cli.inspect import Inspect
from zephon_vl.cli.run import Run
from zephon_vl.errors import ZephonError

_COMMANDS = {"index": Index, "explain": Explain, "run": Run, "digest": Digest, "inspect": Inspect}
_Command = Union[tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in _COMMANDS.items())]  # noqa: UP007
BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141
_DESCRIPTION = "Vision-language training data: build indexes, explain a recipe, run it, prove its digests, look at it."
_NOTES = "Every command takes --debug, which shows tracebacks; --version prints the version."


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command line.

    Raises:
        SystemExit: always; with 0, 2 (bad input), 130 (Ctrl-C) or 141 (nobody reads the output any more).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    sys.exit(_guarded([word for word in words if word != "--debug"], debug))


def _guarded(words: list[str], debug: bool) -> int:
    """Status of a command. What goes wrong is one sentence on standard error, unless `debug`."""
    try:
        if "--version" in words:
            sys.stdout.write(f"zephon-vl {__version__}\n")
            return 0
        return _parse(words).run()
    except KeyboardInterrupt:
        _complain("interrupted", debug)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains when it flushes at exit
        return PIPE_CLOSED
    except ZephonError as error:
        _complain(str(error), debug)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}", debug)
    return BAD_INPUT


def _parse(words: list[str]) -> Index | Explain | Run | Digest | Inspect:
    """Raises `ZephonError` for words that are no command, and `SystemExit` after a help text."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                _Command,  # type: ignore[arg-type] - a union of subcommands
                prog="zephon-vl",
                description=f"{_DESCRIPTION} {_NOTES}",
                args=words or ["--help"],
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise ZephonError(f"{_sentence(errors.getvalue()).rstrip('.')}; see {_help_for(words)}") from None


def _sentence(box: str) -> str:
    """What a box of tyro's says: the text between its title and its first rule, on one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    rows = [row.strip("│ ") for row in plain.splitlines() if row.startswith("│")]
    rule = next((i for i, row in enumerate(rows) if row.startswith("──")), len(rows))
    return " ".join(row for row in rows[:rule] if row) or plain.strip()


def _help_for(words: list[str]) -> str:
    command = f"{words[0]} " if words and words[0] in _COMMANDS else ""
    return f"zephon-vl {command}--help"


def _complain(sentence: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
        return
    Console(stderr=True, soft_wrap=True).print(f"zephon-vl: {sentence}", markup=False, highlight=False)
