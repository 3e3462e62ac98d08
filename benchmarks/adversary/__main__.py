"""A search in trouble: what it loses, how long others wait, and what an attacker gets.

    python -m benchmarks.adversary [--quick] [--only PART[,PART]] [--json PATH]

Each part is a module with ``measure(quick)``, which returns its figures. ``--quick`` takes less than a minute.
"""

from __future__ import annotations

import importlib

from benchmarks.common import parser, publish

PARTS: tuple[str, ...] = (
    "heavy",
    "hostile",
    "outage",
    "races",
)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--only", metavar="PART[,PART]", help=f"some of {', '.join(PARTS)}")
    arguments = options.parse_args()
    chosen = arguments.only.split(",") if arguments.only else PARTS
    if unknown := sorted(set(chosen) - set(PARTS)):
        options.error(f"--only={','.join(unknown)} is no part; use some of {', '.join(PARTS)}")
    figures: dict[str, float] = {}
    for part in chosen:
        print(f"{part} ...", flush=True)
        figures |= importlib.import_module(f"benchmarks.adversary.{part}").measure(arguments.quick)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
