"""`python -m benchmarks.soak`: half of the peers on S3, half on libp2p, a random fault a minute.

Writes report.json, summary.md, soak.png and samples.csv into the folder, and the run itself into
its folder `run`. Exit status: 0 as it must be, 1 not, 2 cannot be run, 130 stopped.
"""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from benchmarks.soak.drawing import draw
from benchmarks.soak.judging import judge
from benchmarks.soak.outcome import Outcome
from benchmarks.soak.reporting import markdown, report_of, write_report
from benchmarks.soak.run_soak import NotStartedError, run_soak
from benchmarks.soak.settings import SoakSettings

_STOPPED = 130


def main() -> int:
    """Runs a soak; gives the exit status."""
    settings = _settings()
    if settings.out.exists() and any(settings.out.iterdir()):
        print(f"{settings.out} is not empty; give another --out", file=sys.stderr)
        return 2
    settings.out.mkdir(parents=True, exist_ok=True)
    try:
        outcome = asyncio.run(_run(settings))
    except asyncio.CancelledError:
        print("stopped; samples.csv and run/ are as far as they came", file=sys.stderr)
        return _STOPPED
    except NotStartedError as error:
        print(
            f"the swarm does not start: {error}; see {settings.out}/run/nodes/*/node.log",
            file=sys.stderr,
        )
        return 2
    report = report_of(outcome, settings, judge(outcome, settings))
    write_report(report, settings.out)
    draw(outcome, settings.out / "soak.png")
    print(markdown(report))
    return 0 if report["good"] else 1


async def _run(settings: SoakSettings) -> Outcome:
    task = asyncio.ensure_future(run_soak(settings, lambda line: print(line, flush=True)))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await task


def _settings() -> SoakSettings:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="time with faults")
    parser.add_argument("--peers-s3", type=int, default=6)
    parser.add_argument("--peers-p2p", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1, help="of the schedule of faults")
    parser.add_argument("--out", type=Path, required=True, help="a new or empty folder")
    parser.add_argument("--fault-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--hold", type=float, default=30.0, help="seconds that a bad link stays so")
    parser.add_argument("--round-seconds", type=float, default=240.0, help="of the manifest")
    parser.add_argument("--inner-steps", type=int, default=60)
    parser.add_argument(
        "--p2p-over-http",
        action="store_true",
        help="peers on libp2p read records from the validator's HTTP service, not from the network",
    )
    parser.add_argument("--min-goodput", type=float, default=0.75, help="payloads: least share")
    parser.add_argument("--min-rounds-goodput", type=float, default=0.4, help="the same of rounds")
    given = parser.parse_args()
    if given.peers_s3 < 1 or given.peers_p2p < 1 or given.minutes <= 0 or given.fault_every <= 0:
        parser.error("at least one peer of each kind, and times above 0")
    return SoakSettings(
        duration_s=given.minutes * 60,
        num_s3=given.peers_s3,
        num_p2p=given.peers_p2p,
        seed=given.seed,
        out=given.out.resolve(),
        fault_every_s=given.fault_every,
        hold_s=min(given.hold, given.fault_every),
        round_seconds=given.round_seconds,
        inner_steps=given.inner_steps,
        p2p_over_http=given.p2p_over_http,
        min_goodput=given.min_goodput,
        min_rounds_goodput=given.min_rounds_goodput,
    )


if __name__ == "__main__":
    sys.exit(main())
