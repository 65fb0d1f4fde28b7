"""Tokenizers for the sample corpus: the real Qwen2 vocabulary, or a small one trained on the spot."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

END, PAD = "<|im_end|>", "<|endoftext|>"
# In the order of their ids, 151643 to 151656, in the Qwen2-VL vocabulary.
SPECIAL = (
    PAD,
    "<|im_start|>",
    END,
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_HELLO_WORLD, _IMAGE = [9707, 1879], 151655
# How Qwen2's vocabulary cuts a text into words before its merges apply.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# As in Qwen2-VL, down to the system turn of a chat that has none.
_TEMPLATE = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type in ('image', 'image_url') %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part.type == 'text' %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def write_qwen(ranks: bytes, directory: Path) -> Tokenizer:
    """Convert Qwen's tiktoken ranks, one `base64 rank` a line, to a byte-level BPE.

    Raises:
        ValueError: if these are not the ranks of Qwen2.
    """
    vocabulary = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, ranks.splitlines())}
    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges: list[tuple[str, str]] = []
    for token, rank in vocabulary.items():
        if len(token) > 1:
            left, right = _parents(token, rank, vocabulary)
            merges.append((spell(left), spell(right)))
    tokenizer = Tokenizer(models.BPE({spell(token): rank for token, rank in vocabulary.items()}, merges))
    _finish(tokenizer, directory)
    ids, image = tokenizer.encode("Hello world").ids, tokenizer.token_to_id("<|image_pad|>")
    if (ids, image) != (_HELLO_WORLD, _IMAGE):
        raise ValueError(
            f'"Hello world" is {ids} and <|image_pad|> {image}, but in Qwen2-VL they are {_HELLO_WORLD} and {_IMAGE}: '
            "these are not its ranks"
        )
    return tokenizer


def write_tiny(texts: list[str], directory: Path) -> Tokenizer:
    """Train a byte-level BPE of about 8,000 tokens; the same each time."""
    tokenizer = Tokenizer(models.BPE())
    _set_up(tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finish(tokenizer, directory)


def _finish(tokenizer: Tokenizer, directory: Path) -> Tokenizer:
    _set_up(tokenizer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": PAD,
        "pad_token": PAD,
        "add_bos_token": False,
        "chat_template": _TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    return tokenizer


def _set_up(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()


def _parents(token: bytes, rank: int, vocabulary: dict[bytes, int]) -> list[bytes]:
    """The two tokens that merge into `token`: what its bytes become under the merges of lower rank."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [(vocabulary.get(a + b, rank), i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
        lowest, i = min(pairs)
        if lowest >= rank:
            raise ValueError(f"token {token!r} is not made by the merges of lower rank")
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def _byte_letters() -> dict[int, str]:
    """The printable letter that byte-level BPE writes for each byte: itself where it is printable Latin-1, else the
    next code point from 256 on (Radford et al. 2019, the encoder of GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + i) for i, byte in enumerate(others)}
