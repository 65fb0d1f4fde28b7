"""The entry point `zephon-vl`: runs a command, and ends in one sentence and a status where it cannot.

What takes long to import is imported inside the guard: Ctrl-C may come at any time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from zephon_vl import __version__
from zephon_vl.errors import ZephonError

BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

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
        from zephon_vl.cli.commands import parse

        return parse(words).run()
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


def _complain(sentence: str, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
        return
    sys.stderr.write(f"zephon-vl: {sentence}\n")
