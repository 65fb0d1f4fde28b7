"""docs/benchmarks.md from results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bench.corpus_paths import MAX_PIXELS, SEQ_LEN, About
from bench.measure import Measured, middle
from bench.run_resume import Results as ResumeResults
from bench.run_vl import Results, best_grain, rates_of


class Everything(msgspec.Struct, kw_only=True):
    """What report.py has measured so far."""

    about: About
    machine: dict[str, str]
    minutes: dict[str, float] = {}
    """How long each table took."""
    same: Results | None = None
    box: Results | None = None
    scaling: dict[str, Results] = {}
    """By the number of workers, as `sleeping`."""
    sleeping: dict[str, Results] = {}
    text: Results | None = None
    resume: ResumeResults | None = None


def page(found: Everything, others: Sequence[str] = ()) -> str:
    """The whole page. `others`: sections of other scripts, kept as they are."""
    parts = [_head(found)]
    if found.same:
        what = (
            "Every loader calls the same decode, resize, patchify and tokenize functions (this library's operators, "
            "with simplejpeg and pillow-simd), so only the loaders differ."
        )
        parts.append(_table_section(found.same, "Same code", what))
    if found.box:
        what = (
            "Each as its user gets it: this library with its own operators; the others with plain Pillow and NumPy "
            "(uint8 patches, the leanest way to write it), and with the image processor of transformers, which gives "
            "float32. This library and the lean lines leave normalising to the device; the processor and TorchTitan "
            "do it in the worker."
        )
        parts.append(_table_section(found.box, "Out of the box", what))
    if found.scaling:
        parts.append(_scaling(found))
    if found.sleeping:
        parts.append(_sleeping(found.sleeping))
    if found.text:
        parts.append(_text(found.text))
    if found.resume:
        parts.append(_resume(found.resume))
    return "\n\n".join([*parts, _method(found), *others]) + "\n"


def _head(found: Everything) -> str:
    about, machine = found.about, found.machine
    versions = ", ".join(f"{name} {value}" for name, value in machine.items() if name not in ("processor", "cores"))
    return f"""# Benchmarks

![Samples a second of each loader](benchmarks.png)

Written by `python bench/report.py` in {sum(found.minutes.values()):.0f} minutes; nothing on this page is typed. Run it
on your own machine: absolute figures of one machine say little about another.

- Machine: {machine["processor"]}, {machine["cores"]} cores. {versions}.
- Corpus: {about.images:,} distinct JPEGs made of real photographs, {about.megapixels:.2f} megapixels and
  {about.bytes / 1e3:.0f} kB on average (log-uniform, 0.1 to 4 megapixels; quality around 85; a fifth 4:4:4, a quarter
  progressive), with captions of one or two sentences; Qwen2's vocabulary.
- Work: decode, bicubic resize to the grid of preset `qwen3_5` (at most {MAX_PIXELS:,} pixels), patchify, tokenize, pack
  to {SEQ_LEN:,} tokens (best fit, 8 open sequences), two sequences a batch, as tensors in the consumer."""


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "| --- " + "| ---: " * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _first(rates: Mapping[str, tuple[float, float, float]], title: str) -> float | None:
    return rates[title][0] if title in rates else None


def _ratio(value: float, to: float | None) -> str:
    return f"{value / to:.2f}" if to else "-"


def _mid(rounds: Sequence[Measured], field: str) -> float:
    return middle([getattr(one, field) for one in rounds])[0]


def _table_section(results: Results, title: str, what: str) -> str:
    rates = rates_of(results)
    ceiling, grain = _first(rates, "ceiling, tuned"), best_grain(rates)
    bare = _mid(results.entries["ceiling, tuned"], "cpu") if "ceiling, tuned" in results.entries else None
    rows = []
    for name, rounds in results.entries.items():
        rate, least, most = rates[name]
        cpu = _mid(rounds, "cpu")
        is_ceiling = name.startswith("ceiling")
        rows.append(
            [
                name,
                f"{rate:.0f}",
                f"{least:.0f} to {most:.0f}",
                _ratio(rate, ceiling),
                _ratio(rate, grain),
                f"{cpu * 1e3:.2f}",
                "" if bare is None or is_ceiling else f"{(cpu - bare) * 1e3:+.2f}",
                "" if is_ceiling else f"{_mid(rounds, 'consumer_cpu') * 1e3:.2f}",
                "" if is_ceiling else f"{_mid(rounds, 'opened'):.2f}",
                "" if is_ceiling else f"{_mid(rounds, 'first_batch'):.2f}",
                "" if is_ceiling else f"{_mid(rounds, 'pss') / 1e6:.0f}",
            ]
        )
    header = [
        "loader",
        "samples/s",
        "spread",
        "of the ceiling",
        "of Grain",
        "CPU a sample, ms",
        "beyond the ceiling, ms",
    ]
    header += ["of it in the consumer, ms", "start-up, s", "first batch, s", "peak PSS, MB"]
    table = _rows(header, rows)
    notes = [_same_work(results), _tuning(results), _failures(results)]
    return "\n\n".join([f"## {title}, {results.workers} workers", what, table, *filter(None, notes)])


def _same_work(results: Results) -> str:
    told = []
    for name, found in results.compared.items():
        state = (
            f"{found.documents} documents, token ids, labels, positions and grids equal" if found.same else "DIFFERS"
        )
        pixels = (
            "pixels equal" if not found.images_differ else f"largest difference of a pixel {found.largest:.0f} of 255"
        )
        told.append(f"{name} ({state}{', ' + pixels if found.images else ''})")
    return f"Same work, compared with the work done from the files: {'; '.join(told)}." if told else ""


def _tuning(results: Results) -> str:
    told = []
    for name, tried in results.tuning.items():
        best = max(tried, key=lambda setting: tried[setting])
        others = ", ".join(f"{setting}: {rate:.0f}/s" for setting, rate in tried.items())
        told.append(f"{name} runs with {best} ({others})")
    return f"Tuned first, the best taken: {'; '.join(told)}." if told else ""


def _failures(results: Results) -> str:
    told: dict[str, list[str]] = {}
    for name, why in results.failed.items():
        kind = "Left out of a median" if name in results.entries else "Not measured"
        told.setdefault(kind, []).append(f"{name}: {why.splitlines()[-1] if why else why}")
    return "\n\n".join(f"{kind}: {'; '.join(found)}." for kind, found in told.items())


def _scaling(found: Everything) -> str:
    tables = dict(found.scaling)
    if found.same:
        tables[str(found.same.workers)] = found.same
    counts = sorted(tables, key=int)
    names = dict.fromkeys(name for results in found.scaling.values() for name in results.entries)
    rows = []
    for name in names:
        cells = [_first(rates_of(tables[count]), name) for count in counts]
        rows.append([name, *(f"{cell:.0f}" if cell else "-" for cell in cells)])
    table = _rows(["samples/s, same code", *(f"workers: {count}" for count in counts)], rows)
    note = (
        "Beyond the machine's cores, workers only show that they do no harm. Grain's grid holds twice as many reading "
        "threads as workers, and its best is taken: with one worker it may use two cores."
    )
    return f"## Scaling\n\n{table}\n\n{note}"


def _sleeping(tables: Mapping[str, Results]) -> str:
    rows = []
    for workers, results in sorted(tables.items(), key=lambda item: int(item[0])):
        rates = rates_of(results)
        grain = best_grain(rates)
        for name, rounds in results.entries.items():
            ideal = int(workers) / rounds[0].settings.sleep
            rows.append(
                [
                    name,
                    workers,
                    f"{rates[name][0]:.0f}",
                    _ratio(rates[name][0], ideal),
                    _ratio(rates[name][0], grain),
                    f"{_mid(rounds, 'cpu') * 1e6:.0f}",
                    f"{_mid(rounds, 'consumer_cpu') * 1e6:.0f}",
                    f"{_mid(rounds, 'consumer_cpu') * _per_batch(rounds) * 1e3:.2f}",
                ]
            )
    header = ["loader", "workers", "samples/s", "of the ideal", "of Grain", "CPU a sample, us"]
    header += ["of it in the consumer, us", "in the consumer a batch, ms"]
    what = (
        "A fixed sleep stands for decoding, so cores are not the limit: what is left is what the loaders themselves "
        "cost. The ideal is workers over the time of the sleep. Samples are captions."
    )
    told = [
        f"With {workers} workers: {failures[0].lower()}{failures[1:]}"
        for workers, results in sorted(tables.items(), key=lambda item: int(item[0]))
        if (failures := _failures(results))
    ]
    return "\n\n".join(["## A stage that sleeps", what, _rows(header, rows), *told])


def _per_batch(rounds: Sequence[Measured]) -> float:
    return sum(one.samples for one in rounds) / sum(one.batches for one in rounds)


def _text(results: Results) -> str:
    rates = {title: middle([one.tokens_rate for one in rounds]) for title, rounds in results.entries.items()}
    alone, grain = _first(rates, "tokenizers alone"), best_grain(rates)
    rows = [
        [
            name,
            f"{rates[name][0]:,.0f}",
            f"{rates[name][1]:,.0f} to {rates[name][2]:,.0f}",
            _ratio(rates[name][0], alone),
            _ratio(rates[name][0], grain),
            f"{_mid(rounds, 'cpu') * 1e6:.0f}",
            f"{_mid(rounds, 'pss') / 1e6:.0f}",
        ]
        for name, rounds in results.entries.items()
    ]
    header = ["loader", "tokens/s", "spread", "of tokenizers alone", "of Grain", "CPU a document, us", "peak PSS, MB"]
    notes = filter(None, [_same_work(results), _tuning(results), _failures(results)])
    return "\n\n".join([f"## Text only, {results.workers} workers", _rows(header, rows), *notes])


def _resume(results: ResumeResults) -> str:
    rows = []
    for name, rounds in results.restored.items():
        seconds, least, most = middle([one.seconds for one in rounds])
        cold = middle([one.seconds for one in results.cold[name]])[0]
        size = f"{rounds[0].state_bytes / 1e3:,.0f}"
        exact = "yes" if results.exact[name] else "no"
        rows.append([name, f"{seconds:.2f}", f"{least:.2f} to {most:.2f}", f"{cold:.2f}", size, exact])
    header = ["loader", "restored, s", "spread", "cold start, s", "state, kB", "same next batch"]
    what = (
        f"From a process with nothing but torch imported to the first batch, after {results.step} batches of the "
        "packed pipeline of images and text. The next batch is compared with the one of the uninterrupted run."
    )
    return f"## Restoring\n\n{what}\n\n{_rows(header, rows)}"


def _all(results: Results) -> list[Measured]:
    return [one for rounds in results.entries.values() for one in rounds]


def _method(found: Everything) -> str:
    tables = [table for table in (found.same, found.box, found.text) if table]
    rounds = max((len(rounds) for table in tables for rounds in table.entries.values()), default=0)
    seconds = max((table.seconds for table in tables), default=0)
    settled = [table for table in (found.text, *found.sleeping.values()) if table]
    settle = max((one.settings.settle for table in settled for one in _all(table)), default=0)
    windows = ", ".join(f"{table.seconds:.0f} s with {workers} workers" for workers, table in found.sleeping.items())
    notes = ""
    if settle:
        notes += (
            f"\n  With text only, and where a stage sleeps, {settle} batches are taken first, which fill sequences."
        )
    if windows:
        notes += f"\n  Where a stage sleeps, windows are {windows}."
    return f"""## Method

- Each measurement is a process of its own, and loaders take turns, round by round ({rounds} rounds): figures are
  medians, the spread is the least and the most. Loaders are compared within a table only.
- A window of {seconds:.0f} s of the steady state is timed from the arrival of one batch to that of another.
  The consumer reads one byte of each page of each tensor and lets the batch go.{notes}
- CPU time is of all processes together. The consumer's own is what a training loop pays for with its GIL.
- Start-up is the call that opens the loader; first batch counts from before the import of its library, in a process
  that has torch. Memory is the proportional set size (shared pages count once) over all processes after the window.
- The ceiling: bare processes that decode, resize and patchify the same pictures and throw them away; tuned with this
  library's allocator settings and one warm buffer, untuned without.
- Each loader is written as its documentation advises (`bench/loaders/`), reads its own format (tar, ArrayRecord, files)
  and has as many batches ready."""
