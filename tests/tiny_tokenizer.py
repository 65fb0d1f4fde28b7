"""A tiny byte-level BPE in the form that transformers saves, trained in a moment from the text below."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

BOS, EOS, PAD = "<|startoftext|>", "<|endoftext|>", "<|pad|>"
SPECIAL = (
    BOS,
    EOS,
    PAD,
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
NOT_SPECIAL = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Added tokens that a tokenizer keeps when it skips special ones, as in Qwen3."""

CHATML_WITH_VISION = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_TEXT = """\
The lighthouse keeper counted the ships each evening and wrote their names in a long blue book.
A picture of a small harbour with three boats, a red roof and two people walking along the pier.
What is shown in the image? The image shows a cat that sleeps on a wooden table beside a cup of coffee.
How many birds are there in this photograph? There are four birds on the wire and one on the ground.
You are a helpful assistant. The user asks a question and the assistant answers it in a few words.
In the morning the market opens at 7:30, and by 10 the best apples are gone; bring 25 coins and a bag.
system user assistant tool function name arguments value number text image video first second third
If the weather is fine, they'll walk over the hill; if it isn't, we've the train at 12:45 from platform 3.
Übergrößen, naïve façades and smörgåsbord: letters with marks are letters too. Привет, мир! 你好 世界!
def area(width, height): return width * height  # {"width": 640, "height": 480, "format": "jpeg"}
"""


def build_tiny_tokenizer(directory: str | Path, vocabulary_size: int = 640) -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja to `directory`; return it.

    The text above gives `vocabulary_size` tokens at most; the added ones follow them.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT.splitlines(keepends=True), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in NOT_SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1 << 20,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHATML_WITH_VISION, encoding="utf-8")
    return directory
