"""One file per loader, each written as its library's own documentation advises; `protocol.py` says what it must give."""
