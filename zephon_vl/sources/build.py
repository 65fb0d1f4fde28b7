"""Builds what indexes are missing or stale, in parallel over shards."""

from __future__ import annotations

import os
import selectors
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING

import msgspec

from zephon_vl import errors
from zephon_vl.channel import Channel, ChannelClosed
from zephon_vl.errors import SourceError
from zephon_vl.launch import start
from zephon_vl.sources.compressed import index_gzip, index_zstd
from zephon_vl.sources.contents import with_contents
from zephon_vl.sources.handles import ShardHandle, SourceHandle
from zephon_vl.sources.indexfile import (
    ShardIndex,
    UnusableIndex,
    cache_directory,
    index_paths,
    load_index,
    save_index,
    shard_lock,
)
from zephon_vl.sources.jsonl import index_lines, plain_chunks
from zephon_vl.sources.parquet import index_parquet
from zephon_vl.sources.patterns import find_shards, shard_kind
from zephon_vl.sources.schemas import Schema
from zephon_vl.sources.storage import Stat, Storage, is_url
from zephon_vl.sources.tar import index_tar

if TYPE_CHECKING:
    import subprocess

    from zephon_vl.recipe import Recipe

_WORTH_PROCESSES = 256 << 20
"""Bytes of shards to be indexed from which processes beat threads."""
_LOOKING = 32
"""Threads that look at shards and their indexes: on network storage that is waiting, not work."""


class IndexProgress(msgspec.Struct, frozen=True):
    """How far building is; given to the caller's function after each shard, in the caller's thread."""

    source: str
    shard: str
    done: int
    """Shards, over all sources."""
    total: int
    bytes_done: int
    bytes_total: int


class Job(msgspec.Struct, array_like=True):
    """One shard on its way to its handle."""

    source: int
    name: str
    path: str
    kind: str
    stat: Stat


class JobFailure(msgspec.Struct, array_like=True, tag="failed"):
    kind: str
    text: str


class JobDone(msgspec.Struct, array_like=True, tag="done"):
    handle: ShardHandle


job_decoder = msgspec.msgpack.Decoder(Job)
_answer_decoder = msgspec.msgpack.Decoder(JobDone | JobFailure)


def build_indexes(
    recipe: Recipe, workers: int | None = None, progress: Callable[[IndexProgress], None] | None = None
) -> list[SourceHandle]:
    """Make sure that every shard of the recipe has an index; one handle for each source.

    Safe in a process with threads or an accelerator: nothing is forked.

    Args:
        workers: shards indexed at the same time; None: one for each processor, at most 16.
        progress: called after each shard that was looked at.

    Raises:
        SourceError: a source without shards or samples, an unknown format, a broken shard.
        StorageError, MissingExtra, RecipeError
    """
    shards: list[tuple[int, str, str]] = []
    handles: list[SourceHandle] = []
    for number, source in enumerate(recipe.sources):
        Schema(source)  # refuses unknown names of fields before any work is done
        found = find_shards(recipe, source)
        handles.append(SourceHandle(source.name, found.root, found.format, []))
        shards += [(number, name, path) for name, path in found.shards]
    with ThreadPoolExecutor(min(_LOOKING, len(shards)), "zephon-vl-index") as pool:
        looked = list(pool.map(_look, shards))
    jobs = [job for job, _ in looked]
    done: dict[str, ShardHandle] = {}
    bytes_done, bytes_total = 0, sum(job.stat.size for job in jobs)
    workers = workers or min(16, os.cpu_count() or 1)
    for job, handle in _run(looked, workers):
        done[f"{job.source} {job.name}"] = handle
        bytes_done += job.stat.size
        if progress is not None:
            name = handles[job.source].name
            progress(IndexProgress(name, job.name, len(done), len(jobs), bytes_done, bytes_total))
    for job in jobs:  # in the order of the names, whichever was ready first
        handles[job.source].shards.append(done[f"{job.source} {job.name}"])
    if recipe.identify_by == "contents":
        for handle in handles:
            handle.shards[:] = with_contents(handle.shards, workers)
    for handle in handles:
        if handle.samples == 0:
            raise SourceError(
                f"source {handle.name!r}: its {len(handle.shards)} shards under {handle.root} hold no sample"
            )
    return handles


def ensure_index(job: Job, storage: Storage) -> ShardHandle:
    """The handle of a shard, its index built if there is no valid one. Raises `ZephonError`s."""
    found = _existing(job)
    if found is None:
        with shard_lock(job.path):
            found = _existing(job) or _build(job, storage)
    return found


def _look(shard: tuple[int, str, str]) -> tuple[Job, ShardHandle | None]:
    number, name, path = shard
    kind = shard_kind(path)
    assert kind is not None  # find_shards refuses what it does not know
    job = Job(number, name, path, kind, Storage().stat(path))
    return job, _existing(job)


def _run(looked: list[tuple[Job, ShardHandle | None]], workers: int) -> Iterator[tuple[Job, ShardHandle]]:
    missing: list[Job] = []
    for job, handle in looked:
        if handle is None:
            missing.append(job)
        else:
            yield job, handle
    local = [job for job in missing if not is_url(job.path)]
    if workers > 1 and len(local) > 1 and sum(job.stat.size for job in local) >= _WORTH_PROCESSES:
        yield from _run_in_processes(local, min(workers, len(local)))
        missing = [job for job in missing if is_url(job.path)]
    if workers > 1 and len(missing) > 1:
        yield from _run_in_threads(missing, min(workers, len(missing)))
    else:
        for job in missing:
            yield job, ensure_index(job, Storage())


def _run_in_threads(jobs: list[Job], workers: int) -> Iterator[tuple[Job, ShardHandle]]:
    with ThreadPoolExecutor(workers, "zephon-vl-index") as pool:
        futures = {pool.submit(lambda job=job: ensure_index(job, Storage())): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_in_processes(jobs: list[Job], workers: int) -> Iterator[tuple[Job, ShardHandle]]:
    waiting = deque(sorted(jobs, key=lambda job: -job.stat.size))  # the longest first, so that all end together
    helpers: list[tuple[subprocess.Popen[bytes], Channel]] = []
    try:
        with selectors.DefaultSelector() as selector:
            for _ in range(workers):
                helper = start("zephon_vl.sources.helper")
                helpers.append(helper)
                selector.register(helper[1], selectors.EVENT_READ, _give(helper[1], waiting))
            left = len(jobs)
            while left:
                for ready, _ in selector.select():
                    channel = ready.fileobj
                    assert isinstance(channel, Channel)
                    job: Job = ready.data
                    yield job, _answer(channel, job)
                    left -= 1
                    if waiting:
                        selector.modify(channel, selectors.EVENT_READ, _give(channel, waiting))
                    else:
                        selector.unregister(channel)
    finally:
        for process, channel in helpers:
            channel.close()
            process.kill()
            process.wait()


def _give(channel: Channel, waiting: deque[Job]) -> Job:
    job = waiting.popleft()
    channel.send(msgspec.msgpack.encode(job))
    return job


def _answer(channel: Channel, job: Job) -> ShardHandle:
    try:
        answer = _answer_decoder.decode(channel.receive())
    except ChannelClosed as error:
        raise SourceError(
            f"{job.path}: the process that indexed it ended; it may have been killed for its memory. Try again with "
            f"fewer workers"
        ) from error
    if isinstance(answer, JobDone):
        return answer.handle
    failure = getattr(errors, answer.kind)
    raised = failure.__new__(failure)  # not all of them take their text
    raised.args = (answer.text,)
    raise raised


def _existing(job: Job) -> ShardHandle | None:
    for path in index_paths(job.path):
        try:
            index = load_index(path, job.kind, job.stat, check=True)
        except UnusableIndex:
            continue
        return ShardHandle(job.name, job.path, job.kind, job.stat, path, index.count)
    return None


def _build(job: Job, storage: Storage) -> ShardHandle:
    index = _index(job, storage)
    if storage.stat(job.path) != job.stat:
        raise SourceError(f"{job.path} changed while it was indexed; wait until it is written, then start again")
    failures: list[str] = []
    for path in index_paths(job.path):
        try:
            save_index(path, job.kind, job.stat, index)
        except OSError as error:
            failures.append(f"{path}: {error.strerror}")
            continue
        return ShardHandle(job.name, job.path, job.kind, job.stat, path, index.count)
    raise SourceError(
        f"the index of {job.path} cannot be written ({'; '.join(failures)}); set ZEPHON_VL_CACHE, which is "
        f"{cache_directory()} now, to a directory that can be written"
    )


def _index(job: Job, storage: Storage) -> ShardIndex:
    path, size = job.path, job.stat.size
    if job.kind == "tar":
        return index_tar(storage, path, size)
    if job.kind == "jsonl":
        return index_lines(plain_chunks(storage, path, size))
    if job.kind == "jsonl.gz":
        return index_gzip(storage, path)
    if job.kind == "jsonl.zst":
        return index_zstd(storage, path, size)
    return index_parquet(storage, path)
