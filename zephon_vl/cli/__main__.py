"""`python -m zephon_vl.cli`."""

from zephon_vl.cli.main import main

main()
