"""A step as a page to look at: packed sequences with their documents, pictures and masks."""

from zephon_vl.inspect.model import DocumentView, ImageView, Run, SequenceView, sequences_of
from zephon_vl.inspect.page import page
from zephon_vl.inspect.words import TokenView

__all__ = ["DocumentView", "ImageView", "Run", "SequenceView", "TokenView", "page", "sequences_of"]
