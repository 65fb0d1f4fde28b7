"""`zephon-vl`: build indexes, explain a recipe, run it, prove its digests, look at a step."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.console import Console

from zephon_vl import __version__
from zephon_vl.cli.digest import Digest
from zephon_vl.cli.explain import Explain
from zephon_vl.cli.index import Index
from zephon_vl.cli.inspect import Inspect
from zephon_vl.cli.run import Run
from zephon_vl.errors import ZephonError

Command = (
    Annotated[Index, tyro.conf.subcommand("index", description=Index.__doc__)]
    | Annotated[Explain, tyro.conf.subcommand("explain", description=Explain.__doc__)]
    | Annotated[Run, tyro.conf.subcommand("run", description=Run.__doc__)]
    | Annotated[Digest, tyro.conf.subcommand("digest", description=Digest.__doc__)]
    | Annotated[Inspect, tyro.conf.subcommand("inspect", description=Inspect.__doc__)]
)
BAD_INPUT, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command line. Ends with status 0, 1 (a check failed), 2 (bad input) or 130 (Ctrl-C)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--version" in words:
        Console().print(f"zephon-vl {__version__}", highlight=False)
        return
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    command = tyro.cli(
        Command,  # type: ignore[arg-type] - a union of subcommands
        prog="zephon-vl",
        description=f"{__doc__} Add --debug to any command for tracebacks.",
        args=words or ["--help"],
    )
    sys.exit(_guarded(command, debug))


def _guarded(command: Index | Explain | Run | Digest | Inspect, debug: bool) -> int:
    """Run a command; what goes wrong is one sentence on standard error, unless `debug`."""
    try:
        return command.run()
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except (ZephonError, OSError) as error:
        if debug:
            traceback.print_exc()
        else:
            _complain(str(error))
        return BAD_INPUT


def _complain(sentence: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"zephon-vl: {sentence}", markup=False, highlight=False)
