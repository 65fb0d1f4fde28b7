"""Which characters of a rendered chat are trained on: the model's own turns, with the token that ends each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from zephon_vl.operators.chat_template import GENERATION_START, GENERATION_STOP, PROBE, ChatTemplate

Span = tuple[int, int]


class TurnFinder:
    """Finds the turns to train on in a rendered chat. Learns from a probe how the template begins and ends them.

    In order of preference:

    1. `{% generation %}` blocks, which say it.
    2. The assistant's header (what the template puts before an answer) where it holds a control token. No text of a
       user can forge that, and if it is there exactly once for each assistant turn, the k-th begins the k-th turn,
       whatever the template left out of earlier turns (thinking) or added (tool calls).
    3. Otherwise the chat is rendered again with the turn's text replaced: what differs is the turn.
    """

    def __init__(self, template: ChatTemplate, control: re.Pattern[str]) -> None:
        self._control = control
        self._header, self._prompt = "", ""
        self._end = ""
        self._begins: re.Pattern[str] | None = None
        self._learn(template)

    def _learn(self, template: ChatTemplate) -> None:
        user, assistant = {"role": "user", "content": PROBE}, {"role": "assistant", "content": PROBE}
        if not template.takes_strings:
            part = [{"type": "text", "text": PROBE}]
            user, assistant = {**user, "content": part}, {**assistant, "content": part}
        pieces = strip_generation(template.probe([user, assistant] * 2))[0].split(PROBE)
        if len(pieces) != 5:
            return
        _, before, between, _, after = pieces
        ends = [self._control.search(text) for text in (between, after)]
        if ends[0] is not None and ends[1] is not None and ends[0][0] == ends[1][0]:
            self._end = ends[0][0]

        without, with_prompt = template.probe([user]), template.probe([user], prompt=True)
        self._prompt = with_prompt.removeprefix(without) if with_prompt.startswith(without) else ""
        self._header = _longest_prefix_in(self._prompt, before) if self._prompt else self._from_last_control(before)
        first = self._control.search(self._header)
        if first is None:
            self._header = ""
            return
        next_turn = self._control.search(between, ends[0].end() if self._end and ends[0] else 0)
        texts = {first[0]} | ({next_turn[0]} if next_turn else set())
        self._begins = re.compile("|".join(map(re.escape, sorted(texts))))

    def _from_last_control(self, text: str) -> str:
        found = list(self._control.finditer(text))
        return text[found[-1].start() :] if found else ""

    def by_header(self, text: str, turns: int) -> list[Span] | None:
        """The span of each of the assistant's turns, in order; None if `text` does not show `turns` of them."""
        if not self._header or self._begins is None or text.count(self._header) != turns:
            return None
        spans: list[Span] = []
        at = 0
        for _ in range(turns):
            at = text.index(self._header, at)
            at += len(self._prompt if self._prompt and text.startswith(self._prompt, at) else self._header)
            following = self._begins.search(text, at)
            limit = following.start() if following else len(text)
            end = text.find(self._end, at, limit) if self._end else -1
            stop = end + len(self._end) if end >= 0 else limit
            spans.append((at, stop))
            at = stop
        return spans

    def by_difference(self, text: str, render_with: Callable[[int], str], turns: Sequence[int]) -> list[Span]:
        """The span of each turn in `turns` that the template shows.

        Args:
            render_with: renders the chat with the text of a turn replaced by `PROBE`.
        """
        spans: list[Span] = []
        for turn in turns:
            other = strip_generation(render_with(turn))[0]
            if PROBE not in other:
                continue
            start = _same_start(text, other)
            stop = len(text) - _same_start(text[start:][::-1], other[::-1])
            start = len(text[:start].rstrip(" "))  # the model writes the blank before its answer
            rest = text[stop:]
            if self._end and rest.lstrip().startswith(self._end):
                stop += rest.index(self._end) + len(self._end)
            if stop > start:
                spans.append((start, stop))
        return spans


def strip_generation(text: str) -> tuple[str, list[Span]]:
    """The text without the marks of `{% generation %}` blocks, and the spans that they enclosed."""
    if GENERATION_START not in text:
        return text, []
    pieces: list[str] = []
    spans: list[Span] = []
    starts: list[int] = []
    at = 0
    for piece in re.split(f"([{GENERATION_START}{GENERATION_STOP}])", text):
        if piece == GENERATION_START:
            starts.append(at)
        elif piece == GENERATION_STOP:
            spans.append((starts.pop(), at))
        else:
            pieces.append(piece)
            at += len(piece)
    return "".join(pieces), sorted(spans)


def _longest_prefix_in(prefix: str, text: str) -> str:
    """The longest beginning of `prefix` that `text` contains."""
    return next((prefix[:size] for size in range(len(prefix), 0, -1) if prefix[:size] in text), "")


def _same_start(a: str, b: str) -> int:
    """How many characters at their start two texts share."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
