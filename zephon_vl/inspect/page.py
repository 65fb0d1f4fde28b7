"""The HTML of a step: one self-contained file, readable offline, in light and dark."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from PIL import Image

from zephon_vl.inspect.model import DocumentView, ImageView, Run, SequenceView
from zephon_vl.inspect.style import COLOURS, STYLE
from zephon_vl.messages import BadRecord

_IMAGE_SIDE = 224
"""Longest side of an embedded picture, in pixels."""
_LONG_TEXT = 700
"""Characters of a run after which the rest is folded away."""


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
        "</header><main>",
        _bad(bad),
        *(_sequence(sequence) for sequence in sequences),
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
        '<li><span class="swatch padding"></span>padding</li>',
        '<li><span class="trained">trained on</span></li>',
        '<li><span class="masked">context only</span></li>',
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _bad(records: Sequence[BadRecord]) -> str:
    if not records:
        return ""
    rows = "".join(
        f"<tr><td>{_text(r.source)}</td><td>{_text(r.shard)}</td><td>{_text(r.key)}</td><td>{_text(r.reason)}</td></tr>"
        for r in records
    )
    head = "<tr><th>source</th><th>shard</th><th>key</th><th>reason</th></tr>"
    return f"<details class=bad open><summary>{len(records)} bad samples</summary><table>{head}{rows}</table></details>"


def _sequence(sequence: SequenceView) -> str:
    fill = sequence.used / sequence.seq_len
    count = len([document for document in sequence.documents if document.source >= 0])
    return (
        f'<section id="slot-{sequence.slot}"><h2>slot {sequence.slot}</h2><p class="numbers">lane {sequence.lane} · '
        f"{count} {'document' if count == 1 else 'documents'} · {sequence.used:,} of {sequence.seq_len:,} tokens "
        f"({fill:.1%}) · {sequence.valid:,} labels count</p>{_strip(sequence)}"
        + "".join(_document(sequence.slot, i, document) for i, document in enumerate(sequence.documents))
        + "</section>"
    )


def _strip(sequence: SequenceView) -> str:
    """The sequence at a glance: widths are tokens."""
    bars: list[str] = []
    for i, document in enumerate(sequence.documents):
        parts = "".join(
            f'<i style="flex:{run.length}"{" class=picture" if run.image else "" if run.trained else " class=dim"}></i>'
            for run in document.runs
        )
        label = _text(f"{document.name} · {document.key} · {document.length} tokens")
        bars.append(
            f'<a href="#d-{sequence.slot}-{i}" title="{label}" '
            f'style="flex:{document.length};--c:{_colour(document.source)}">{parts}</a>'
        )
    padding = sequence.seq_len - sum(document.length for document in sequence.documents)
    if padding > 0:
        bars.append(f'<span class="padding" style="flex:{padding}" title="{padding} tokens of padding"></span>')
    return f'<div class="strip">{"".join(bars)}</div>'


def _document(slot: int, number: int, document: DocumentView) -> str:
    colour = _colour(document.source)
    if document.source < 0:
        about = "a black image of one token, so that every sequence has an image"
    else:
        start, stop = document.piece
        about = f"{document.shard} · {document.key} · epoch {document.epoch} · tokens {start:,} to {stop:,}"
    runs = "".join(_run(run) for run in document.runs)
    return (
        f'<article id="d-{slot}-{number}" style="--c:{colour}"><h3><b>{_text(document.name)}</b> '
        f"<span>{_text(about)} · {document.length:,} tokens, {document.trained:,} trained on</span></h3>"
        f'<div class="flow">{runs}</div></article>'
    )


def _run(run: Run) -> str:
    where = f"position {run.first}, {run.length} tokens"
    if run.image is not None:
        t, h, w = run.image.grid
        label = f"{where}: an image of {t} x {h} x {w} patches"
        return f'<img alt="{label}" title="{label}" src="{_data_uri(run.image)}">'
    kind = "trained" if run.trained else "masked"
    label = f"{where}, {'trained on' if run.trained else 'context only'}"
    if len(run.text) <= _LONG_TEXT:
        return f'<span class="{kind}" title="{label}">{_text(run.text)}</span>'
    head, rest = run.text[:_LONG_TEXT], run.text[_LONG_TEXT:]
    return (
        f'<span class="{kind}" title="{label}">{_text(head)}</span><details><summary>{len(rest):,} more characters'
        f'</summary><span class="{kind}">{_text(rest)}</span></details>'
    )


def _data_uri(image: ImageView) -> str:
    picture = Image.fromarray(image.pixels)
    picture.thumbnail((_IMAGE_SIDE, _IMAGE_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _colour(source: int) -> str:
    return "#888" if source < 0 else COLOURS[source % len(COLOURS)]


def _text(value: str) -> str:
    return html.escape(value, quote=True)
