"""What a ledger is on disk: a directory of Parquet segments, each written once, by one rank, and never changed.

A segment holds rows in the order of delivery, and in its footer what session they are of: which rank, from where on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from zephon_vl.errors import LedgerError, MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
METADATA_KEY = b"zephon_vl.ledger"
SUFFIX = ".parquet"
DIGEST_BYTES = 32


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the footer of a segment, as JSON."""

    version: int = VERSION
    session: str
    """Random; a session is what one rank delivers from its start, or from a restore, to its end or the next restore."""
    start_ns: int
    """When the session started: nanoseconds since 1970."""
    dp_rank: int
    dp_size: int
    step: int
    """The step that the session starts with."""
    done: list[int]
    """Slots of that step that had been delivered before, by any rank."""
    lanes: int
    global_batch_size: int
    """Of the recipe; each row has its own, as phases may change it."""
    identity: str
    """SHA-256 of the identity of recipe, data, tokenizer, image code and operators."""
    recipe: msgspec.Raw
    """With `base_dir`, so that the data can be found again."""
    segment: int
    """Counts the segments of the session from 0."""
    rows: int
    first_step: int
    last_step: int

    @property
    def order(self) -> tuple[int, str]:
        """Sorts sessions by their start."""
        return self.start_ns, self.session

    @property
    def file_name(self) -> str:
        return f"rank{self.dp_rank:05d}-{self.start_ns}-{self.session}-{self.segment:06d}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class LedgerDocument:
    """A document of a row, or a piece of one: where it lies, and which of its tokens the row holds."""

    source: str
    shard: str
    key: str
    epoch: int
    index: int
    """Of the sample in its source."""
    take: int
    """Of the sample over all lanes and epochs, see `order`."""
    start: int
    stop: int


DOCUMENT_FIELDS = tuple(LedgerDocument.__dataclass_fields__)


def require_pyarrow(purpose: str) -> None:
    """Raises `MissingExtra` where pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet", purpose) from error


def schema() -> pa.Schema:
    """The columns of a segment."""
    import pyarrow as pa

    texts = {"source", "shard", "key"}
    document = pa.struct([(name, pa.string() if name in texts else pa.int64()) for name in DOCUMENT_FIELDS])
    return pa.schema(
        [
            ("step", pa.int64()),
            ("slot", pa.int32()),
            ("microbatch", pa.int32()),
            ("global_batch_size", pa.int32()),
            ("digest", pa.binary(DIGEST_BYTES)),
            ("valid_tokens", pa.int32()),
            ("used_tokens", pa.int32()),
            ("documents", pa.list_(document)),
        ]
    )


def decode_header(data: bytes, where: str) -> Header:
    """The header of a segment.

    Args:
        where: the segment's path, for messages.

    Raises:
        LedgerError: for one that is damaged or of a newer version.
    """
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("version", msgspec.Raw(b"0"))
        if int(bytes(version)) > VERSION:
            raise LedgerError(
                f"{where} has ledger format {int(bytes(version))}, this library reads up to {VERSION}. Use the version "
                "of the library that wrote it, or a newer one"
            )
        return msgspec.json.decode(data, type=Header)
    except (msgspec.DecodeError, ValueError) as error:
        raise LedgerError(f"{where} has a damaged header: {error}. Restore it from a copy, or take it away") from error


def text_of(name: str) -> str:
    """A name as text: bytes of a file name that are none are shown as escapes."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()
