"""Prints Markdown: exposed communication without overlap and with it, side by side.

The peers' links are so slow that the payloads of a round take a tenth of its computing time.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from benchmarks.compression.measuring import machine_line
from benchmarks.overlap.figures import Figures, figures_of
from benchmarks.overlap.swarm import Case, RunFailedError, run_case


def main() -> int:
    """Runs every case; gives the exit status: 1 if parameters differ anywhere."""
    arguments = _arguments()
    print(machine_line(), "\n")
    print(
        "| peers | overlap | rounds | round | no peer computes | slowest peer, own | "
        "median peer, own | all state hashes equal |"
    )
    print("|---|---|---|---|---|---|---|---|")
    is_good = True
    for spread in arguments.spread:
        for mode in ("none", "one-round"):
            case = _case(arguments, spread, mode)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    logs = asyncio.run(run_case(case, Path(folder)))
                except RunFailedError as error:
                    print(f"{mode}: {error}", file=sys.stderr)
                    return 2
            found = figures_of(logs, case.num_rounds)
            print(_row(spread, case, found), flush=True)
            is_good &= found.num_state_hashes == 1
    return 0 if is_good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8, help="4 at least")
    parser.add_argument("--train-s", type=float, default=20.0, help="the slowest inner loop")
    parser.add_argument("--payload-ratio", type=float, default=0.1)
    parser.add_argument(
        "--spread",
        type=float,
        nargs="*",
        default=[0.0, 0.2],
        help="how much less than the slowest peer's the fastest one's inner loop takes",
    )
    return parser.parse_args()


def _case(arguments: argparse.Namespace, spread: float, mode: str) -> Case:
    last = max(arguments.peers - 1, 1)
    return Case(
        overlap=mode,
        speeds=tuple(1 - spread * (last - i) / last for i in range(arguments.peers)),
        train_s=arguments.train_s,
        payload_ratio=arguments.payload_ratio,
        num_rounds=arguments.rounds,
    )


def _row(spread: float, case: Case, found: Figures) -> str:
    kind = f"{len(case.speeds)} equal" if spread == 0 else f"{len(case.speeds)}, {spread:.0%} apart"
    own = sorted(found.own_ratio.values())
    slowest = found.own_ratio[f"peer-{len(case.speeds) - 1}"]
    return (
        f"| {kind} | {case.overlap} | {found.num_rounds} | {found.round_s:.2f} s | "
        f"{found.swarm_ratio:.1%} | {slowest:.1%} | {own[len(own) // 2]:.1%} | "
        f"{'yes' if found.num_state_hashes == 1 else 'NO'} |"
    )


if __name__ == "__main__":
    sys.exit(main())
