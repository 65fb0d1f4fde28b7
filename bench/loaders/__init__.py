"""One file per loader, written as its library's own documentation advises; `protocol.py` says what each must give."""
