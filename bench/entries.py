"""The lines of each table: which loader, with which stage of the work, on which Pillow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from bench.loaders.protocol import load
from bench.work import Settings, Stage


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a table."""

    title: str
    loader: str
    stage: Stage
    fixed: dict[str, Any] = field(default_factory=dict)
    """Its settings, where they are not to be tuned."""
    peers: tuple[str, ...] = ()
    """Folders of the directory of peers that come first on its path: plain Pillow, torchvision."""
    checked: bool = True
    most_rounds: int = 99
    """Of lines that only orient."""

    @property
    def tuned(self) -> bool:
        return not self.fixed

    def settings(self, base: Settings) -> Settings:
        return msgspec.structs.replace(base, stage=self.stage)

    def tuning(self, settings: Settings) -> dict[str, Any]:
        """What it runs with untuned."""
        return self.fixed or load(self.loader).grid(settings.workers)[0]

    def path(self, peers: str) -> tuple[str, ...]:
        return tuple(f"{peers}/{folder}" for folder in self.peers) if peers else ()


PEERS = {
    "Grain": "grain_loader",
    "torch DataLoader": "torch_dataloader",
    "WebDataset": "webdataset_loader",
    "zephon 0.2.0": "zephon_loader",
}
_CEILING = "ceiling"


def _ceilings() -> list[Entry]:
    return [
        Entry(title=f"ceiling, {name}", loader=_CEILING, stage="same", fixed={"tuned": tuned}, checked=False)
        for name, tuned in (("tuned", True), ("untuned", False))
    ]


def _same() -> list[Entry]:
    peers = [Entry(title=title, loader=loader, stage="same") for title, loader in PEERS.items()]
    return [Entry(title="zephon_vl", loader="zephon_vl", stage="same"), *_ceilings(), *peers]


def _box() -> list[Entry]:
    peers = [Entry(title=title, loader=loader, stage="pillow", peers=("pillow",)) for title, loader in PEERS.items()]
    processors = [
        Entry(title=f"{title}, HF processor", loader=PEERS[title], stage="hf", peers=("pillow",), most_rounds=2)
        for title in ("Grain", "torch DataLoader")
    ]
    titan = Entry(
        title="TorchTitan",
        loader="torchtitan_loader",
        stage="hf",
        peers=("pillow", "torchvision"),
        checked=False,
        most_rounds=2,
    )
    return [Entry(title="zephon_vl", loader="zephon_vl", stage="same"), *_ceilings()[:1], *peers, *processors, titan]


def _text() -> list[Entry]:
    loaders = {"zephon_vl": "zephon_vl", "tokenizers alone": "tokenizers_alone", **PEERS}
    return [
        Entry(title=title, loader=loader, stage="text", checked=loader != "tokenizers_alone")
        for title, loader in loaders.items()
        if loader != "webdataset_loader"
    ]


def _sleep(workers: int) -> list[Entry]:
    shapes = {"processes": {"processes": workers, "threads": 1}, "threads": {"processes": 0, "threads": workers}}
    grain = [
        Entry(title=f"Grain, {name}", loader="grain_loader", stage="sleep", fixed=fixed, checked=False)
        for name, fixed in shapes.items()
    ]
    loaders = {"zephon_vl": "zephon_vl", "torch DataLoader": "torch_dataloader", "zephon 0.2.0": "zephon_loader"}
    others = [Entry(title=title, loader=loader, stage="sleep", checked=False) for title, loader in loaders.items()]
    return [others[0], *grain, *others[1:]]


def entries_of(table: str, workers: int) -> list[Entry]:
    """The lines of a table."""
    match table:
        case "same":
            return _same()
        case "box":
            return _box()
        case "sleep":
            return _sleep(workers)
        case "text":
            return _text()
    raise ValueError(f"no table {table!r}")
