"""Tokenize chats: through the tokenizer's own chat template, with loss on the assistant's turns only."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_vl.contracts import Context, ImagePart, Message, Operator, Sample, TextPart, Vocabulary
from zephon_vl.errors import BadSample, RecipeError
from zephon_vl.operators.chat_template import BROKEN, CHATML, PROBE, RESERVED, ChatTemplate
from zephon_vl.operators.chat_turns import Span, TurnFinder, strip_generation
from zephon_vl.operators.tokenize import TextEncoder, masked, text_encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from zephon_vl.recipe import Recipe, SourceConfig

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which datasets keep a turn's reasoning; templates read the first or second."""


class ChatTokenize(Operator):
    """Sets `sample.tokens` and `sample.image_offsets` of a chat, as the chat template says; no bos or eos is added.

    The ids are those of transformers' `apply_chat_template`, with each image token repeated `part.tokens` times.
    Trained on are the turns with `Message.train`: their text and the token that ends the turn, not the role header, no
    image. A text that spells a control token stays text, wherever in the record it is.

    Raises:
        RecipeError: from the constructor, if there is no chat template, or an unusable one.
    """

    text_only = True

    def __init__(self, recipe: Recipe, source: SourceConfig, vocabulary: Vocabulary) -> None:
        if vocabulary.chat_template is None:
            raise RecipeError(
                f"source {source.name!r} has chats, but the tokenizer at tokenizer.path = {recipe.tokenizer.path!r} "
                "has no chat template; set tokenizer.chat_template to a Jinja file. ChatML, for example, is\n" + CHATML
            )
        self._vocabulary = vocabulary
        self._encoder = text_encoder(vocabulary)
        self._writer = _Literals(self._encoder)
        text_of = {i: token.content for i, token in self._encoder.control.items()}
        named = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos, "pad_token": vocabulary.pad}
        tokens = {name: text_of[i] for name, i in named.items() if i in text_of}
        self._template = ChatTemplate(vocabulary.chat_template, tokens, text_of.get(vocabulary.image))
        self._turns = TurnFinder(self._template, self._writer.control)
        vision = (vocabulary.vision_start, vocabulary.image, vocabulary.vision_end)
        self._placeholder = "".join(text_of[i] for i in vision if i in text_of)
        self._never_trained = [i for i in (*vision, vocabulary.video) if i >= 0] if vocabulary.image >= 0 else []

    def measure(self, sample: Sample, context: Context) -> Sample:
        """Raises `BadSample` with the template's message if it refuses the chat, and where its image tokens are not as
        many as the images."""
        images = sample.images()
        if images and self._vocabulary.image < 0:
            raise BadSample("the chat has an image, but the recipe has no [vision] table")
        messages = [self._message(message) for message in sample.messages]
        tools = self._writer.keep_as_text(sample.tools) if sample.tools else None
        text, generated = strip_generation(self._template.render(messages, tools))
        trained = self._trained(sample.messages, messages, tools, text, generated)
        ids, spans = self._writer.encode(text)
        if not ids:
            raise BadSample("the chat is empty: the chat template writes nothing for it")
        sample.tokens, sample.image_offsets = self._with_images(masked(ids, spans, trained), images)
        return sample

    # --- messages -------------------------------------------------------------------------------------------------

    def _message(self, message: Message) -> dict[str, Any]:
        extra = self._writer.keep_as_text(message.extra)
        reasoning = next((extra[name] for name in _REASONING if extra.get(name) is not None), None)
        if reasoning is not None:
            extra = {"thinking": reasoning, **extra, "reasoning_content": reasoning}
        if "tool_calls" in extra:
            extra["tool_calls"] = _with_parsed_arguments(extra["tool_calls"])
        return {"role": self._writer.keep_as_text(message.role), "content": self._content(message), **extra}

    def _content(self, message: Message) -> str | list[dict[str, Any]]:
        """A plain string if that is all there is; else a list where the template takes lists."""
        template = self._template
        texts = [part.text for part in message.parts if isinstance(part, TextPart)]
        only_text = len(texts) == len(message.parts)
        if only_text and len(texts) <= 1 and (template.takes_strings or not template.takes_lists):
            return self._writer.keep_as_text("".join(texts))
        as_list = template.takes_lists and (only_text or template.image_part is not None)
        content: list[dict[str, Any]] = []
        for is_text, run in groupby(message.parts, lambda part: isinstance(part, TextPart)):
            parts = list(run)
            if is_text:
                texts = [part.text for part in parts if isinstance(part, TextPart)]
                content += [{"type": "text", "text": text} for text in self._writer.keep_all_as_text(texts)]
            else:
                content += [dict(template.image_part or {}) for _ in parts]
        if as_list:
            return content
        text = "".join(part.get("text", self._placeholder) for part in content)
        return [{"type": "text", "text": text}] if template.takes_lists and not template.takes_strings else text

    # --- loss -----------------------------------------------------------------------------------------------------

    def _trained(
        self,
        turns: Sequence[Message],
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        text: str,
        generated: list[Span],
    ) -> list[Span]:
        wanted = [i for i, turn in enumerate(turns) if turn.train]
        answers = [i for i, turn in enumerate(turns) if turn.role == "assistant"]
        if not wanted:
            return []
        found = generated if len(generated) == len(answers) else None
        if generated and found is None and wanted == answers:
            return generated
        if found is None:
            found = self._turns.by_header(text, len(answers))
        if found is not None and set(wanted) <= set(answers):
            return [span for i, span in zip(answers, found, strict=True) if i in wanted]

        def render_with(turn: int) -> str:
            content = messages[turn]["content"]
            probe = PROBE if isinstance(content, str) else [{"type": "text", "text": PROBE}]
            return self._template.render(
                [*messages[:turn], {**messages[turn], "content": probe}, *messages[turn + 1 :]], tools
            )

        return self._turns.by_difference(text, render_with, wanted)

    # --- tokens ---------------------------------------------------------------------------------------------------

    def _with_images(
        self, tokens: NDArray[np.int32], images: Sequence[ImagePart]
    ) -> tuple[NDArray[np.int32], list[int]]:
        """Repeat each image token; mask what belongs to images."""
        for token in self._never_trained:
            tokens[tokens == token] = ~token
        places = np.flatnonzero(tokens == ~self._vocabulary.image) if self._never_trained else ()
        if len(places) != len(images):
            raise BadSample(
                f"the chat template writes {len(places)} image tokens, but the chat has {len(images)} images"
            )
        if not images:
            return tokens, []
        counts = np.ones(len(tokens), np.int64)
        counts[places] = [image.tokens for image in images]
        offsets = (np.cumsum(counts) - counts)[places]
        return np.repeat(tokens, counts), offsets.tolist()


class _Literals:
    """Keeps the control tokens that a record spells apart from those that the template writes.

    A mark inside the literal breaks it before the template sees it. Then the text is cut at the control tokens that are
    whole, and what lies between is encoded as text, without the marks.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        tokens = sorted(encoder.control.items(), key=lambda item: len(item[1].content), reverse=True)
        self._ids = {token.content: i for i, token in tokens}
        texts = [re.escape(token.content) for _, token in tokens]
        self.control = re.compile("|".join(texts) or "(?!)")
        self._suspect = re.compile(f"[{RESERVED}]|{self.control.pattern}")
        # A token may take the blanks around it along.
        around = [
            ("\\s*" if token.lstrip else "") + f"(?:{text})" + ("\\s*" if token.rstrip else "")
            for text, (_, token) in zip(texts, tokens, strict=True)
        ]
        self._control_and_blanks = re.compile("|".join(around) or "(?!)")

    def keep_as_text(self, value: Any) -> Any:
        """A value of a record, in which no string spells a control token any more. Raises `BadSample`."""
        if isinstance(value, str):
            return value if self._suspect.search(value) is None else self._suspect.sub(_broken, value)
        if isinstance(value, dict):
            return {self.keep_as_text(key): self.keep_as_text(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.keep_as_text(item) for item in value]
        return value

    def keep_all_as_text(self, texts: list[str]) -> list[str]:
        """Texts that the template may write one right after the other."""
        whole = "".join(texts)
        if len(texts) > 1 and len(self.control.findall(whole)) != sum(len(self.control.findall(t)) for t in texts):
            texts = [whole]
        return [self.keep_as_text(text) for text in texts]

    def encode(self, text: str) -> tuple[list[int], list[Span]]:
        """Ids of a rendered text, and for each the characters of `text` that it stands for."""
        if BROKEN not in text:
            return self._encoder.encode_with_control(text)
        ids: list[int] = []
        spans: list[Span] = []
        at = 0
        for found in self._control_and_blanks.finditer(text):
            self._encode_text(text[at : found.start()], at, ids, spans)
            token = self.control.search(found[0])
            assert token is not None
            ids.append(self._ids[token[0]])
            spans.append(found.span())
            at = found.end()
        self._encode_text(text[at:], at, ids, spans)
        return ids, spans

    def _encode_text(self, text: str, at: int, ids: list[int], spans: list[Span]) -> None:
        kept = [i for i, character in enumerate(text) if character != BROKEN]
        found, places = self._encoder.encode_with_spans(text.replace(BROKEN, ""))
        ids += found
        for start, stop in places:
            first = at + kept[start] if start < len(kept) else at + len(text)
            spans.append((first, at + kept[stop - 1] + 1 if stop > start else first))


def _broken(found: re.Match[str]) -> str:
    literal = found[0]
    if len(literal) < 2:
        raise BadSample(f"the text has the character {literal!a}, which a chat cannot have")
    return literal[0] + BROKEN + literal[1:]


def _with_parsed_arguments(calls: Any) -> Any:
    """Tool calls whose arguments are JSON in a string (the OpenAI format, and all that a Parquet column can hold), as
    the objects that templates print."""
    if not isinstance(calls, list):
        return calls
    return [_with_parsed_argument(call) for call in calls]


def _with_parsed_argument(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
