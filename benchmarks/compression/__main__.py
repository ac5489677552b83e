"""Prints Markdown: speed, memory, other ways to select, and fidelity on real pseudo-gradients."""

from benchmarks.compression.alternatives import print_alternatives
from benchmarks.compression.fidelity import print_fidelity
from benchmarks.compression.measuring import machine_line
from benchmarks.compression.speed import print_speed_and_memory
from shoal.compression.warm_up import warm_up


def main() -> None:
    """Run everything; about two minutes."""
    warm_up()
    print(machine_line(), "\n")
    for value_bits in (2, 1):
        print_speed_and_memory(value_bits)
    print_alternatives()
    print_fidelity()


if __name__ == "__main__":
    main()
