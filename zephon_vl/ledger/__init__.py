"""The ledger: what a run delivered, on disk, so that two runs can be compared and a step can be explained."""

from zephon_vl.ledger.format import LedgerDocument
from zephon_vl.ledger.reader import Contradiction, Ledger, LedgerRow, LedgerStep, merged
from zephon_vl.ledger.writer import LedgerWriter

__all__ = ["Contradiction", "Ledger", "LedgerDocument", "LedgerRow", "LedgerStep", "LedgerWriter", "merged"]
