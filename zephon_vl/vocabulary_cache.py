"""What was read of a tokenizer, by the contents of its files: loading one takes a second, and every rank and every
loader of a machine would do it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from zephon_vl.contracts import Vocabulary
from zephon_vl.files import write_atomically
from zephon_vl.sources.indexfile import cache_directory


def key_of(files: Sequence[Path], *settings: object) -> str | None:
    """What decides a vocabulary, as one hash; None if a file cannot be read: that is told by whoever needs it."""
    digest = hashlib.sha256(repr(settings).encode("utf-8", "surrogatepass"))
    for file in files:
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            digest.update(b"none\0")
            continue
        except OSError:
            return None
        digest.update(f"{file.name}:{len(data)}\0".encode("utf-8", "surrogatepass"))
        digest.update(data)
    return digest.hexdigest()


def recall(key: str, file: Path) -> Vocabulary | None:
    """The vocabulary of a key, if it is known; `file` is where its serialisation lies now."""
    try:
        known = msgspec.msgpack.decode(_place(key).read_bytes(), type=Vocabulary)
    except (OSError, msgspec.MsgspecError):
        return None
    if not known.tokenizer_json:
        return msgspec.structs.replace(known, tokenizer_json=str(file))
    return known if Path(known.tokenizer_json).is_file() else None


def remember(key: str, vocabulary: Vocabulary, file: Path) -> None:
    """Keep a vocabulary, if the cache directory can be written. The path of a serialisation that belongs to the user is
    left out: it may move."""
    if vocabulary.tokenizer_json == str(file):
        vocabulary = msgspec.structs.replace(vocabulary, tokenizer_json="")
    with contextlib.suppress(OSError):
        write_atomically(_place(key), msgspec.msgpack.encode(vocabulary))


def _place(key: str) -> Path:
    return Path(cache_directory()) / "vocabularies" / f"{key}.msgpack"
