"""Real texts with a heavy-tailed length distribution: the documentation of Python's standard library."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

# Parts that distributions ship apart or not at all: without them, all machines with one Python have the same texts.
_SKIPPED = {"distutils", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter", "turtle"}
_LEAST_DOCSTRING = 60
_LEAST_DOCUMENT = 400
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documents() -> list[str]:
    """The docstrings of the standard library, in the order of the modules' paths: each well-documented class or
    function with its members as one document, the rest of its module as another. Read from the source: nothing is
    imported."""
    return [document for path in _modules() for document in _of_module(path)]


def sentences(texts: list[str]) -> list[str]:
    """Sentences of 20 to 200 characters from the documents, in order."""
    found = [
        " ".join(sentence.split())
        for text in texts
        for sentence in re.findall(r"[A-Z][a-z][^.!?\n]*(?:\n[^.!?\n]+)?[.!?](?=\s)", text)
    ]
    return [sentence for sentence in found if 20 <= len(sentence) <= 200]


def _modules() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    for name in sorted(sys.stdlib_module_names - _SKIPPED):
        if (root / f"{name}.py").is_file():
            yield root / f"{name}.py"
        elif (root / name).is_dir():
            yield from (
                path
                for path in sorted((root / name).rglob("*.py"))
                if _SKIPPED.isdisjoint(path.relative_to(root).parts)
            )


def _of_module(path: Path) -> list[str]:
    tree = ast.parse(path.read_bytes())
    rest, alone = [_docstrings([tree])], []
    for node in tree.body:
        text = _docstrings(ast.walk(node))
        (alone if len(text) >= _LEAST_DOCUMENT else rest).append(text)
    return [text for text in ("\n\n".join(filter(None, rest)), *alone) if text]


def _docstrings(nodes: Iterable[ast.AST]) -> str:
    found = (ast.get_docstring(node) for node in nodes if isinstance(node, _DOCUMENTED))
    return "\n\n".join(text for text in found if text and len(text) >= _LEAST_DOCSTRING)
