"""Real texts with a heavy-tailed length distribution: the documentation of Python's standard library."""

from __future__ import annotations

import ast
import re
import sysconfig
from pathlib import Path

_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo", "ensurepip"}


def documents() -> list[str]:
    """The docstrings of each module of the standard library as one document, in the order of the modules' paths; long
    ones also stand alone. Read from the source, so that nothing is imported."""
    root = Path(sysconfig.get_path("stdlib"))
    found: list[str] = []
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED.isdisjoint(path.relative_to(root).parts):
            found.extend(_of_module(path))
    return found


def sentences(texts: list[str]) -> list[str]:
    """Sentences of 20 to 200 characters from the documents, in order."""
    found = [
        " ".join(sentence.split())
        for text in texts
        for sentence in re.findall(r"[A-Z][a-z][^.!?\n]*(?:\n[^.!?\n]+)?[.!?](?=\s)", text)
    ]
    return [sentence for sentence in found if 20 <= len(sentence) <= 200]


def _of_module(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []  # a template, or a file that is broken on purpose
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    parts = [doc for node in ast.walk(tree) if isinstance(node, kinds) and (doc := ast.get_docstring(node))]
    parts = [part for part in parts if len(part) > 60]
    if not parts:
        return []
    alone = [part for part in parts if len(part) > 400]
    return ["\n\n".join(parts), *alone] if len(parts) > 1 else parts
