"""The HTML of a step: one self-contained file, readable offline, in light and dark."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from PIL import Image

from zephon_vl.contracts import IGNORE
from zephon_vl.inspect.model import DocumentView, ImageView, Run, SequenceView
from zephon_vl.inspect.style import COLOURS, STYLE
from zephon_vl.inspect.words import TokenView
from zephon_vl.messages import BadRecord
from zephon_vl.topology import EMPTY

_IMAGE_SIDE = 208
"""Longest side of an embedded picture, in pixels."""
_LONG = 260
"""Words of a run after which the rest is folded away."""


def page(
    title: str, facts: Sequence[tuple[str, str]], sequences: Sequence[SequenceView], bad: Sequence[BadRecord]
) -> str:
    """The whole page.

    Args:
        facts: (name, value) pairs for the head: recipe, step, digest, ...
        bad: bad samples met on the way to the step.
    """
    sources = {document.source: document.name for s in sequences for document in s.documents}
    body = [
        f"<header><h1>{_text(title)}</h1><dl>",
        *(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts),
        "</dl>",
        _legend(sources),
        _overview(sequences),
        "</header><main>",
        _bad(bad),
        *(_sequence(sequence, _anchor(sequence, i)) for i, sequence in enumerate(sequences)),
        "</main>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _legend(sources: dict[int, str]) -> str:
    items = [
        f'<li><span class="swatch" style="--c:{_colour(source)}"></span>{_text(name)}</li>'
        for source, name in sorted(sources.items())
    ]
    items += [
        '<li><span class="swatch picture"></span>image tokens</li>',
        '<li><span class="swatch dim"></span><span class="masked">not trained on</span></li>',
        '<li><span class="swatch padding"></span>padding</li>',
        "<li>point at a word for its position, token id and label, the id to predict after it</li>",
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _overview(sequences: Sequence[SequenceView]) -> str:
    """All sequences at a glance; each leads to its own place."""
    rows = "".join(
        f'<a href="#{_anchor(s, i)}" title="{_name(s)}, {_share(s)} full"><span>{"" if s.slot == EMPTY else s.slot}'
        f'</span><span class="strip">{_bars(s)}</span></a>'
        for i, s in enumerate(sequences)
    )
    return f'<nav aria-label="all sequences">{rows}</nav>'


def _bad(records: Sequence[BadRecord]) -> str:
    if not records:
        return ""
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{_text(cell)}</td>" for cell in (r.source, r.shard, r.key, _outcome(r), r.reason))
        + "</tr>"
        for r in records
    )
    head = "".join(f"<th>{name}</th>" for name in ("source", "shard", "key", "so", "reason"))
    count = _count(len(records), "bad sample")
    return f'<details class="bad" open><summary>{count}</summary><table><tr>{head}</tr>{rows}</table></details>'


def _outcome(record: BadRecord) -> str:
    return "its image is grey, nothing of it is trained on" if record.stage == "render" else "skipped"


def _sequence(sequence: SequenceView, anchor: str) -> str:
    documents = sequence.documents
    strip = "".join(_linked_bar(document, f"{anchor}-{i}") for i, document in enumerate(documents))
    return (
        f'<section id="{anchor}"><h2>{_name(sequence)}</h2><p class="numbers">{_numbers(sequence)}</p>'
        f'<div class="strip">{strip}{_padding(sequence)}</div>'
        + "".join(_document(document, f"{anchor}-{i}") for i, document in enumerate(documents))
        + "</section>"
    )


def _name(sequence: SequenceView) -> str:
    return "empty row" if sequence.slot == EMPTY else f"slot {sequence.slot}"


def _anchor(sequence: SequenceView, number: int) -> str:
    """Where a sequence stands in the page; empty rows have no slot to be told apart by."""
    return f"row-{number}" if sequence.slot == EMPTY else f"slot-{sequence.slot}"


def _numbers(sequence: SequenceView) -> str:
    if sequence.slot == EMPTY:
        return "only fills its microbatch up: no document, no label counts"
    if sequence.empty:
        return f"lane {sequence.lane} · empty: the data of its lane has ended; no label counts"
    return (
        f"lane {sequence.lane} · {_count(sum(d.source >= 0 for d in sequence.documents), 'document')} · "
        f"{_count(sum(d.images for d in sequence.documents), 'image')} · {sequence.used:,} of {sequence.seq_len:,} "
        f"tokens ({_share(sequence)}) · {sequence.valid:,} labels count"
    )


def _bars(sequence: SequenceView) -> str:
    """A strip without its links: widths are tokens."""
    bars = "".join(
        f'<b style="flex:{document.length};--c:{_colour(document.source)}">{_parts(document)}</b>'
        for document in sequence.documents
    )
    return bars + _padding(sequence)


def _linked_bar(document: DocumentView, anchor: str) -> str:
    label = _text(" · ".join(filter(None, (document.name, document.key, f"{document.length:,} tokens"))))
    return (
        f'<a href="#{anchor}" title="{label}" '
        f'style="flex:{document.length};--c:{_colour(document.source)}">{_parts(document)}</a>'
    )


def _parts(document: DocumentView) -> str:
    """What of a document is image, trained on, or not; neighbours of the same kind are one."""
    parts: list[tuple[str, int]] = []
    for run in document.runs:
        kind = "picture" if run.image else "" if run.trained else "dim"
        if parts and parts[-1][0] == kind and kind != "picture":
            parts[-1] = (kind, parts[-1][1] + run.length)
        else:
            parts.append((kind, run.length))
    return "".join(f'<i{f" class={kind}" if kind else ""} style="flex:{length}"></i>' for kind, length in parts)


def _padding(sequence: SequenceView) -> str:
    length = sequence.seq_len - sum(document.length for document in sequence.documents)
    if length <= 0:
        return ""
    return f'<b class="padding" style="flex:{length}" title="{length:,} tokens of padding"></b>'


def _document(document: DocumentView, anchor: str) -> str:
    if document.source < 0:
        about = "a black image of one token, so that every sequence has an image"
    else:
        start, stop = document.piece
        about = f"{document.shard} · {document.key} · epoch {document.epoch} · its tokens {start:,} to {stop:,}"
    runs = "".join(_run(run) for run in document.runs)
    return (
        f'<article id="{anchor}" style="--c:{_colour(document.source)}"><h3><b>{_text(document.name)}</b> '
        f"<span>{_text(about)} · {_count(document.length, 'token')}, {document.trained:,} trained on</span></h3>"
        f'<div class="flow">{runs}</div></article>'
    )


def _run(run: Run) -> str:
    if run.image is not None:
        return _figure(run, run.image)
    kind = "" if run.trained else ' class="masked"'
    head = f"<span{kind}>{''.join(map(_word, run.words[:_LONG]))}</span>"
    rest = run.words[_LONG:]
    if not rest:
        return head
    folded = "".join(map(_word, rest))
    return f"{head}<details><summary>{len(rest):,} more words</summary><span{kind}>{folded}</span></details>"


def _word(word: TokenView) -> str:
    ids, labels = " ".join(map(str, word.ids)), " ".join("none" if n == IGNORE else str(n) for n in word.labels)
    special = " class=s" if word.special else ""
    return f'<i{special} title="{word.first} · id {ids} · label {labels}">{_text(word.text)}</i>'


def _figure(run: Run, image: ImageView) -> str:
    t, h, w = image.grid
    height, width = image.pixels.shape[:2]
    tokens = _count(image.tokens, "token")
    label = f"position {run.first}, {tokens}: an image of {t} x {h} x {w} patches, {width} x {height} pixels"
    return (
        f'<figure title="{label}"><img alt="{label}" src="{_data_uri(image)}">'
        f"<figcaption>{t} x {h} x {w} patches, {tokens}</figcaption></figure>"
    )


def _data_uri(image: ImageView) -> str:
    picture = Image.fromarray(image.pixels)
    picture.thumbnail((_IMAGE_SIDE, _IMAGE_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=72)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _colour(source: int) -> str:
    return "#888" if source < 0 else COLOURS[source % len(COLOURS)]


def _share(sequence: SequenceView) -> str:
    return f"{sequence.used / sequence.seq_len:.1%}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _text(value: str) -> str:
    return html.escape(value, quote=True)
