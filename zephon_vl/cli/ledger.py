"""`zephon-vl ledger`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Table
from rich.text import Text

from zephon_vl.cli.options import require_at_least
from zephon_vl.cli.pages import MaxSequences, PageOut, page_path, write_page
from zephon_vl.cli.progress import bar_of, index_with_bar
from zephon_vl.errors import LedgerError
from zephon_vl.recipe import load_recipe

if TYPE_CHECKING:
    from zephon_vl.ledger import Ledger as OpenLedger
    from zephon_vl.ledger import LedgerDocument, LedgerRow, LedgerStep
    from zephon_vl.ledger.compare import Contents, Difference
    from zephon_vl.ledger.replay import Replayed
    from zephon_vl.tasks import Setup

DIFFERENT = 1
_Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="The ledger of a run: a directory.")]
_Step = Annotated[int, tyro.conf.arg(metavar="N", help="The step.")]
_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True)
class Verify:
    """Compare two runs step by step and name the first difference; or check one by itself.

    Exit status: 0 where all that both hold is equal, and that is at least one whole step; 1 where something differs or
    contradicts itself; 2 where nothing can be compared.
    """

    run_a: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="A", help="The ledger of a run: a directory.")]
    run_b: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="B", help="That of another one.")] = None

    def run(self) -> int:
        from zephon_vl.ledger import Ledger
        from zephon_vl.ledger.compare import check

        a = Ledger(self.run_a)
        if self.run_b is not None:
            return self._pair(a, Ledger(self.run_b))
        contents = check(a)
        _say("whole steps", contents.whole)
        sound = _contents("", a, contents)
        if not contents.whole.count:
            raise LedgerError(f"the ledger {a.path} holds no whole step")
        _print("the ledger is sound" if sound else "the ledger is NOT sound")
        return 0 if sound else DIFFERENT

    def _pair(self, a: OpenLedger, b: OpenLedger) -> int:
        from zephon_vl.ledger.compare import compare

        result = compare(a, b)
        _say("steps compared", f"{result.compared:,}")
        _say("equal", f"{result.equal:,}")
        _say("different", result.different)
        _say("only in A", result.only_a)
        _say("only in B", result.only_b)
        sound = [_contents(f" in {name}", *of) for name, of in (("A", (a, result.a)), ("B", (b, result.b)))]
        if result.first is not None:
            _print(*_explain(a, b, result.first))
        if result.first is not None or not all(sound):
            return DIFFERENT
        if not result.compared:
            raise LedgerError(
                f"the ledgers have no whole step in common, so nothing is proved: whole steps in {a.path} are "
                f"{result.a.whole}, in {b.path} {result.b.whole}"
            )
        _print(f"all {result.equal:,} whole steps that both hold are equal")
        return 0


@dataclass(frozen=True)
class Why:
    """List the samples of a step: where each lies, and which of its tokens a sequence holds."""

    ledger: _Run
    step: _Step
    slot: Annotated[int | None, tyro.conf.arg(metavar="S")] = None
    """Only this sequence of the step."""

    def run(self) -> int:
        require_at_least("--step", self.step, 0)
        from zephon_vl.ledger import Ledger

        step = Ledger(self.ledger).step(self.step)
        rows = list(step.rows.values())
        if self.slot is not None:
            if self.slot not in step.rows:
                raise LedgerError(
                    f"step {step.number} of {self.ledger} has no slot {self.slot}: it holds {len(rows)} of the "
                    f"{step.global_batch_size} slots from 0 to {step.global_batch_size - 1}"
                )
            rows = [step.rows[self.slot]]
        whole = step.digest or f"incomplete: {len(step.rows)} of {step.global_batch_size} slots"
        title = f"step {step.number}  {whole}"
        if self.slot is not None:
            title += f"\nslot {self.slot}  {rows[0].digest.hex()}"
        _table(title, ("slot", "source", "shard", "key", "epoch", "tokens"), _lines(rows))
        return 0


@dataclass(frozen=True)
class Show:
    """Write the page of a step that inspect makes, from the ledger: its documents are read and rendered again, but no
    step before. Says whether the digests are those of the run.

    Exit status: 0 where they are; 1 where they are not: data, tokenizer, an operator or the image code has changed.
    """

    ledger: _Run
    step: _Step
    out: PageOut = None
    max_sequences: MaxSequences = None
    recipe: Annotated[Path | None, tyro.conf.arg(metavar="RECIPE")] = None
    """A recipe file, instead of the recipe in the ledger: where the data has moved."""

    def run(self) -> int:
        require_at_least("--step", self.step, 0)
        require_at_least("--max-sequences", self.max_sequences, 1)
        out = page_path(self.out, self.step)
        from zephon_vl.ledger import Ledger
        from zephon_vl.ledger.replay import Replay, recipe_of
        from zephon_vl.prepare import make_setup

        step = Ledger(self.ledger).step(self.step)
        recipe = load_recipe(self.recipe) if self.recipe else recipe_of(step.latest)
        index_with_bar(recipe)
        setup = make_setup(recipe, 1)
        replay = Replay(setup)
        rows = list(step.rows.values())[: self.max_sequences]
        with bar_of(TextColumn(f"step {self.step}"), BarColumn(), MofNCompleteColumn()) as progress:
            done = [replay.render(row) for row in progress.track(rows)]
        verdict = _verdict(step, done)
        write_page(out, self._page(step, setup, done, verdict))
        _print(verdict, *(f"  slot {row.row.slot}: {text}" for row in done for text in row.moved))
        return 0 if all(row.equal for row in done) else DIFFERENT

    def _page(self, step: LedgerStep, setup: Setup, done: list[Replayed], verdict: str) -> str:
        from zephon_vl.inspect import page, sequences_of
        from zephon_vl.sources import open_sources

        batches = [row.batch for row in done]
        shown = list(sequences_of(batches, setup, open_sources(setup.recipe, setup.sources)))
        facts = [
            ("ledger", str(self.ledger)),
            ("recipe", str(self.recipe or "of the ledger")),
            ("sequences", f"{len(shown)} of {step.global_batch_size} shown, from {setup.recipe.lanes} lanes"),
            ("SHA-256", verdict),
        ]
        return page(f"step {self.step}", facts, shown, [record for batch in batches for record in batch.bad])


@dataclass(frozen=True)
class Ledger:
    """Look into the ledgers that runs leave with Loader(ledger=...): compare two, explain a step, show it."""

    action: Annotated[
        Annotated[Verify, tyro.conf.subcommand("verify")]
        | Annotated[Why, tyro.conf.subcommand("why")]
        | Annotated[Show, tyro.conf.subcommand("show")],
        tyro.conf.arg(name=""),
    ]

    def run(self) -> int:
        return self.action.run()


def _verdict(step: LedgerStep, done: list[Replayed]) -> str:
    """Whether what is rendered now is what the run delivered."""
    different = [row for row in done if not row.equal]
    if different:
        first = different[0]
        return (
            f"DIFFERENT from the ledger: {len(different)} of {len(done)} sequences, the first is slot "
            f"{first.row.slot}: {first.digest} now, {first.row.digest.hex()} in the ledger. Data, tokenizer, operators "
            "or the image code has changed"
        )
    if len(done) == step.global_batch_size:
        return f"{step.digest}, as in the ledger"
    return f"the sequences shown, {len(done)} of {step.global_batch_size}, are as in the ledger"


def _contents(where: str, ledger: OpenLedger, contents: Contents) -> bool:
    """Say what else there is to say of a ledger; whether it is sound."""
    if contents.incomplete.count:
        _say(f"incomplete{where}", contents.incomplete)
    if contents.redone:
        same = f"{contents.changed:,} of them with another digest" if contents.changed else "all with the same digest"
        _say(f"redone{where}", f"{contents.redone:,} rows after a restart, {same}")
    faults = list(ledger.missing)
    if contents.holes.count:
        faults.append(f"rows are missing inside the run, not only at its end: of steps {contents.holes}")
    if contents.first_contradiction is not None:
        faults.append(f"{contents.contradictions:,} contradictions, the first: {contents.first_contradiction}")
    for fault in faults:
        _say(f"fault{where}", fault)
    return not faults


def _explain(a: OpenLedger, b: OpenLedger, first: Difference) -> Iterator[str]:
    """What the first difference is, and what it may come from."""
    if first.slot is None:
        sizes = [ledger.step(first.step).global_batch_size for ledger in (a, b)]
        yield f"first difference: step {first.step} has {sizes[0]} slots in A, {sizes[1]} in B"
        return
    rows = [ledger.step(first.step).rows[first.slot] for ledger in (a, b)]
    yield f"first difference: step {first.step}, slot {first.slot}"
    yield from (f"  {name}  SHA-256 {row.digest.hex()}" for name, row in zip("AB", rows, strict=True))
    left, right = rows[0].documents, rows[1].documents
    if left == right:
        yield "  the documents are the same: their bytes, the tokenizer, an operator or the image code differ"
    else:
        place = next(i for i in range(max(len(left), len(right))) if left[i : i + 1] != right[i : i + 1])
        yield f"  the documents differ from number {place} on"
        yield from (f"  {name}  {_document(of[place : place + 1])}" for name, of in (("A", left), ("B", right)))
    same = "the same" if a.identities == b.identities else "not the same"
    yield f"  recipe, data, tokenizer, image code and operators of the runs are {same} by their identities"


def _document(found: tuple[LedgerDocument, ...]) -> str:
    if not found:
        return "none"
    d = found[0]
    return f"{d.source}  {d.shard}  {d.key}  epoch {d.epoch}, tokens {d.start}:{d.stop}"


def _lines(rows: list[LedgerRow]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        for d in row.documents:
            yield str(row.slot), d.source, d.shard, d.key, str(d.epoch), f"{d.start}:{d.stop}"


def _table(title: str, head: tuple[str, ...], lines: Iterator[tuple[str, ...]]) -> None:
    """A table for people, or lines for programs."""
    if not sys.stdout.isatty():
        _print(title)
        for line in (head, *lines):
            _print("\t".join(cell.translate(_ESCAPES) for cell in line))
        return
    table = Table(title=title, title_justify="left")
    for name in head:
        table.add_column(name, justify="right" if name in ("slot", "epoch", "tokens") else "left", overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    Console().print(table)


def _say(topic: str, what: object) -> None:
    _print(f"{topic:<16}{what}")


def _print(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
