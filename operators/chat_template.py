"""Chat templates: a tokenizer's Jinja template, compiled once, and what can be learned of it by rendering a probe."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zephon_vl.errors import BadSample, RecipeError

if TYPE_CHECKING:
    import jinja2

# Noncharacters: Unicode keeps them for a program's internal use. They never reach the tokenizer.
GENERATION_START, GENERATION_STOP, BROKEN, PROBE = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
RESERVED = GENERATION_START + GENERATION_STOP + BROKEN + PROBE

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Shown where a tokenizer has no template."""

_IMAGE_STYLES: tuple[dict[str, Any], ...] = (
    {"type": "image"},
    {"type": "image", "image": ""},
    {"type": "image_url", "image_url": {"url": ""}},
)


class ChatTemplate:
    """A compiled template, in the sandbox and with the settings of transformers.

    `strftime_now` is left undefined: a template may test for it (Llama 3 has a fixed date for that case), but one that
    prints today's date would make the data change from day to day, and is refused.

    Raises:
        RecipeError: from the constructor for a template that is no Jinja; from any rendering for today's date.
    """

    def __init__(self, text: str, tokens: Mapping[str, str], image: str | None) -> None:
        """tokens: `bos_token` and so on, as the template sees them. image: text of the image token."""
        self._template = _compile(text)
        self._tokens = dict(tokens)
        self.takes_strings = self._prints_probe(PROBE)
        self.takes_lists = self._prints_probe([{"type": "text", "text": PROBE}])
        self.image_part = self._find_image_part(image) if image is not None and self.takes_lists else None
        """What stands for an image in a list of content parts; None: images must be written into the text."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None, prompt: bool = False
    ) -> str:
        """The conversation as text; `{% generation %}` blocks stand between `GENERATION_START` and `GENERATION_STOP`.

        Args:
            prompt: end with what the template puts before an answer.

        Raises:
            BadSample: with the template's own message.
            RecipeError: if the template asks for today's date.
        """
        import jinja2

        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **self._tokens
            )
        except jinja2.UndefinedError as error:
            if "strftime_now" in str(error):
                raise RecipeError(
                    "tokenizer.chat_template: the chat template prints today's date (strftime_now), so the data would "
                    "change from day to day; set tokenizer.chat_template to a copy of it with a fixed date"
                ) from error
            raise BadSample(f"the chat template fails: {error}") from error
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise BadSample(f"the chat template fails: {error}") from error

    def probe(self, messages: Sequence[Mapping[str, Any]], prompt: bool = False) -> str:
        """As `render`, but the empty text where the template refuses these messages."""
        try:
            return self.render(messages, prompt=prompt)
        except BadSample:
            return ""

    def _prints_probe(self, content: Any) -> bool:
        text = self.probe([{"role": "user", "content": content}])
        return text.count(PROBE) == 1 and "'text'" not in text and '"text"' not in text

    def _find_image_part(self, image: str) -> dict[str, Any] | None:
        for part in _IMAGE_STYLES:
            text = self.probe([{"role": "user", "content": [part, {"type": "text", "text": PROBE}]}])
            if text.partition(PROBE)[0].count(image) == text.count(image) == 1:
                return part
        return None


@functools.lru_cache(maxsize=4)
def _compile(text: str) -> jinja2.Template:
    import jinja2
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`: what the model writes. It is marked in the text, so it may stand in macros too."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return GENERATION_START + caller() + GENERATION_STOP

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise RecipeError(
            f"tokenizer.chat_template: the chat template is not valid Jinja: line {error.lineno}: {error.message}"
        ) from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)
