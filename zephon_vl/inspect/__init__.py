"""A step as a page to look at: packed sequences with their documents, pictures and masks."""

from zephon_vl.inspect.model import DocumentView, ImageView, Run, SequenceView, sequences_of
from zephon_vl.inspect.page import page

__all__ = ["DocumentView", "ImageView", "Run", "SequenceView", "page", "sequences_of"]
