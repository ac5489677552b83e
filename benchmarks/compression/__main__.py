"""Prints Markdown: speed, memory, other ways to select, and fidelity on real pseudo-gradients."""

import argparse

from benchmarks.compression.alternatives import print_alternatives
from benchmarks.compression.fidelity import print_fidelity
from benchmarks.compression.measuring import machine_line
from benchmarks.compression.speed import print_speed_and_memory
from shoal.compression.warm_up import warm_up

PARTS = {
    "two-bits": lambda: print_speed_and_memory(2),
    "one-bit": lambda: print_speed_and_memory(1),
    "selection": print_alternatives,
    "fidelity": print_fidelity,
}


def main() -> None:
    """Run the parts named, or all of them: a minute and a half on two idle cores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    # Without the empty list, argparse refuses its own default.
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    parts = parser.parse_args().parts or list(PARTS)
    warm_up()
    print(machine_line(), "\n")
    for part in parts:
        PARTS[part]()


if __name__ == "__main__":
    main()
