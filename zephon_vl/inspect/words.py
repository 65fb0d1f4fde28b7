"""Tokens as a person reads them: each with its text, and characters never cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

_CUT = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 8
"""Most tokens to wait for until a character is whole, so that a broken text comes to an end."""


@dataclass(frozen=True)
class TokenView:
    """One token, or the few that make one character."""

    text: str
    first: int
    """Position in the sequence."""
    ids: tuple[int, ...]
    labels: tuple[int, ...]
    """What is to be predicted after each."""
    special: bool


class Words:
    """Cuts token ids into readable units."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.get_added_tokens_decoder())

    def of(self, ids: list[int], labels: list[int], first: int) -> list[TokenView]:
        """The units of neighbouring tokens.

        Args:
            first: position in the sequence of the first one.
        """
        return [
            TokenView(
                text,
                first + start,
                tuple(ids[start:stop]),
                tuple(labels[start:stop]),
                special=stop == start + 1 and ids[start] in self._special,
            )
            for start, stop, text in self._cut(ids)
        ]

    def _cut(self, ids: list[int]) -> Iterator[tuple[int, int, str]]:
        """(start, stop, text) of each unit."""
        before, start = 0, 0
        for stop in range(1, len(ids) + 1):
            text = self._text(ids[before:start], ids[start:stop])
            if text.endswith(_CUT) and stop < len(ids) and stop - start < _LONGEST:
                continue
            yield start, stop, text
            before, start = start, stop

    def _text(self, before: list[int], ids: list[int]) -> str:
        """The text that `ids` add: some decoders drop a space at the beginning, so they see the tokens before too."""
        head = self._decode(before) if before else ""
        whole = self._decode(before + ids)
        return whole[len(head) :] if whole.startswith(head) else self._decode(ids)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
