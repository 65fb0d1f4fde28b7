"""Text only: tokens a second of each loader with the same tokenizer, and of `tokenizers` alone on the same cores.

    python bench/run_text.py --data bench_data

Takes the options of run_vl.py; a sample is a document of the standard library's documentation.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import msgspec
import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import middle
from bench.run_vl import Arguments, Results, measure_table


def main() -> None:
    arguments = dataclasses.replace(tyro.cli(Arguments, description=__doc__), table="text")
    results = measure_table(arguments, Console())
    show_tokens(results, Console())
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))


def show_tokens(results: Results, console: Console) -> None:
    """Print the medians."""
    table = Table("loader", "tokens/s", "spread", "of tokenizers alone", "CPU a document, us", "first, s", "PSS, MB")
    rates = {title: middle([m.tokens_rate for m in rounds]) for title, rounds in results.entries.items()}
    alone = next((rate for title, (rate, _, _) in rates.items() if title == "tokenizers alone"), None)
    for title, rounds in results.entries.items():
        rate, least, most = rates[title]
        table.add_row(
            title,
            f"{rate:,.0f}",
            f"{least:,.0f} to {most:,.0f}",
            f"{rate / alone:.2f}" if alone else "",
            f"{middle([m.cpu for m in rounds])[0] * 1e6:.0f}",
            f"{middle([m.first_batch for m in rounds])[0]:.2f}",
            f"{middle([m.pss for m in rounds])[0] / 1e6:.0f}",
        )
    console.print(table)
    for title, why in results.failed.items():
        console.print(f"{title}: {why}", highlight=False)


if __name__ == "__main__":
    main()
