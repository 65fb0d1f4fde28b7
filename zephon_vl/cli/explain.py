"""`zephon-vl explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from zephon_vl.cli.options import (
    MemoryLimit,
    MicrobatchSize,
    Prefetch,
    Ranks,
    RecipePath,
    Workers,
    bytes_text,
    parse_bytes,
    require_at_least,
)
from zephon_vl.cli.progress import index_with_bar
from zephon_vl.recipe import PhaseConfig, Recipe, SourceConfig, load_recipe
from zephon_vl.schedule import Phase, Schedule

if TYPE_CHECKING:
    from zephon_vl.presets import VisionRules
    from zephon_vl.sources import SourceHandle
    from zephon_vl.tasks import Setup
    from zephon_vl.topology import Topology


@dataclass(frozen=True)
class Explain:
    """Say in words and a table what a recipe will do: sources, shares, lanes, stages, memory. Reads no samples."""

    recipe: RecipePath
    ranks: Ranks = 1
    microbatch_size: MicrobatchSize = 1
    workers: Workers = 2
    prefetch: Prefetch = 4
    memory_limit: MemoryLimit = None

    def run(self) -> int:
        require_at_least("--workers", self.workers, 0)
        require_at_least("--prefetch", self.prefetch, 0)
        memory_limit = parse_bytes(self.memory_limit)
        from zephon_vl.prepare import make_setup
        from zephon_vl.topology import topologies_of

        recipe = load_recipe(self.recipe)
        topologies = topologies_of(recipe, self.ranks, 0, self.microbatch_size)
        index_with_bar(recipe)
        setup = make_setup(recipe, self.microbatch_size)
        memory = self._memory(topologies, setup, memory_limit)
        console = Console()
        console.print(_sources(recipe, setup.sources))
        _say(console, "step", _step(recipe, topologies[0]))
        _say(console, "ranks", _ranks(topologies[0]))
        for config, phase, topology in zip(recipe.phases, Schedule(recipe).phases[1:], topologies[1:], strict=True):
            _say(console, "then", _phase(config, phase, topology))
        if recipe.skip_steps:
            _say(console, "left out", ", ".join(f"steps {first} to {stop - 1}" for first, stop in recipe.skip_steps))
        _say(console, "packing", _packing(recipe))
        if recipe.vision is not None:
            from zephon_vl.presets import resolve_vision

            _say(console, "images", _images(resolve_vision(recipe.vision)))
            _say(console, "decoded by", _image_code())
        _say(console, "tokenizer", f"{setup.vocabulary.size:,} tokens, fingerprint {setup.vocabulary.fingerprint[:16]}")
        _stages(console, setup)
        _say(console, "memory", memory)
        for source, handle in zip(recipe.sources, setup.sources, strict=True):
            if advice := _advice(source, handle):
                _say(console, "advice", advice)
        return 0

    def _memory(self, topologies: Sequence[Topology], setup: Setup, memory_limit: int | None) -> str:
        from zephon_vl.layout import BatchLayout
        from zephon_vl.prepare import count_buffers

        size = max(BatchLayout(layout).size for layout in setup.layouts)
        buffers = count_buffers(topologies, size, self.prefetch, memory_limit)
        processes = f"{self.workers} workers and one coordinator beside" if self.workers else "no process beside"
        return (
            f"each rank has {buffers} buffers of at most {bytes_text(size)}, {bytes_text(buffers * size)} in all, and "
            f"{processes} the training process"
        )


def _say(console: Console, topic: str, sentence: str) -> None:
    console.print(Text.assemble((f"{topic:>10}  ", "bold"), sentence), soft_wrap=True)


def _sources(recipe: Recipe, handles: list[SourceHandle]) -> Table:
    table = Table("source", "schema", "format", title=f"sources, and their shares of {recipe.weight_by}")
    for name in ("shards", "samples", "bytes", "share"):
        table.add_column(name, justify="right")
    table.add_column("order")
    total = sum(source.weight for source in recipe.sources)
    for source, handle in zip(recipe.sources, handles, strict=True):
        table.add_row(
            source.name,
            source.schema,
            handle.format,
            f"{len(handle.shards):,}",
            f"{handle.samples:,}",
            bytes_text(handle.size),
            f"{source.weight / total:.1%}",
            f"blocks, window {source.block_window}" if source.order == "blocks" else source.order,
        )
    return table


def _step(recipe: Recipe, topology: Topology) -> str:
    repeat = "Sources repeat for ever" if recipe.repeat else "The run ends when every source was used once"
    return (
        f"{recipe.global_batch_size} sequences of {recipe.seq_len:,} tokens "
        f"({recipe.global_batch_size * recipe.seq_len:,} tokens) from {recipe.lanes} lanes, "
        f"{topology.per_lane} of each lane. {repeat}"
    )


def _phase(config: PhaseConfig, phase: Phase, topology: Topology) -> str:
    """What changes with a phase, and what that comes to."""
    recipe = phase.recipe
    total = sum(source.weight for source in recipe.sources)
    changes = []
    if config.weights:
        shares = ", ".join(f"{source.name} {source.weight / total:.1%}" for source in recipe.sources if source.weight)
        changes.append(f"shares of {recipe.weight_by}: {shares}")
    if config.seq_len is not None:
        changes.append(f"sequences of {recipe.seq_len:,} tokens")
    if config.global_batch_size is not None:
        changes.append(f"{recipe.global_batch_size} sequences a step, {topology.microbatches_per_step} microbatches")
    return f"from step {phase.first_step}: {'; '.join(changes)}"


def _ranks(topology: Topology) -> str:
    from zephon_vl.topology import lanes_of

    sizes = [len(lanes_of(rank, topology.lanes, topology.dp_size)) for rank in range(topology.dp_size)]
    lanes = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} or {max(sizes)}"
    text = (
        f"{topology.dp_size} of at most {topology.lanes}; each owns {lanes} lanes and delivers "
        f"{topology.microbatches_per_step} microbatches of {topology.microbatch_size} per step"
    )
    empty = topology.filled_batch_size - topology.global_batch_size
    if not empty:
        return f"{text}; no row is empty"
    per_rank = topology.microbatches_per_step * topology.microbatch_size
    filled = [rank for rank, size in enumerate(sizes) if size * topology.per_lane < per_rank]
    names = ", ".join(map(str, filled[:12])) + (", ..." if len(filled) > 12 else "")
    return f"{text}; {empty} of {topology.filled_batch_size} rows are empty, on ranks {names}"


def _packing(recipe: Recipe) -> str:
    packing = recipe.packing
    return (
        f"{packing.algorithm} into {packing.open_sequences} open sequences per lane; documents over {recipe.seq_len:,} "
        f"tokens: {packing.overlong}"
    )


def _images(rules: VisionRules) -> str:
    return (
        f"preset {rules.preset}: patches of {rules.patch} pixels, {rules.merge} x {rules.merge} of them to a token, in "
        f"{rules.layout} order; resized to {rules.min_pixels:,} to {rules.max_pixels:,} pixels, "
        f"{rules.min_tokens} to {rules.max_tokens} tokens"
    )


def _image_code() -> str:
    """The image libraries that decide every pixel, as a checkpoint's identity holds them."""
    from zephon_vl.image_code import identity

    code = identity()
    library = f"{code.pop('library')} {code.pop('version')}"
    return ", ".join([library, *(f"{name.replace('_', ' ')} {version}" for name, version in code.items())])


def _stages(console: Console, setup: Setup) -> None:
    """The operators of each source; sources with the same ones share a line."""
    from zephon_vl.runner import load_pipeline

    pipeline = load_pipeline(setup.pipeline)
    lines: dict[tuple[str, str], list[str]] = {}
    for source in setup.recipe.sources:
        chain = pipeline.chain(setup.recipe, source, setup.vocabulary)
        measure, render = (" > ".join(type(op).__name__ for op in face) for face in (chain.measure, chain.render))
        lines.setdefault((measure, render), []).append(source.name)
    for (measure, render), names in lines.items():
        _say(console, "measure", f"{measure}  ({', '.join(names)})")
        if render:
            _say(console, "render", f"{render}  ({', '.join(names)})")


def _advice(source: SourceConfig, handle: SourceHandle) -> str | None:
    packed = handle.format == "parquet" or any(shard.name.endswith((".gz", ".zst")) for shard in handle.shards)
    if source.order != "global" or not packed:
        return None
    return (
        f'source {source.name!r} is read in compressed blocks: with order = "global" each sample may cost a whole one '
        'where they do not fit in the cache of 128 MiB; order = "blocks" reads each block once per epoch'
    )
