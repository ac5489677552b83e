"""Whether a soak was as it must be: one check per line, each with what was found and its bound."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.soak.faults import Fault
from benchmarks.soak.outcome import (
    Outcome,
    differing,
    goodput_by_peer,
    payload_goodput,
    recovery_s,
    rounds_goodput,
    soaked,
)
from benchmarks.soak.processes import Sample
from benchmarks.soak.settings import (
    MAX_FDS,
    MAX_FDS_PER_H,
    MAX_MEMORY_MIB_PER_H,
    MAX_THREADS_PER_H,
    MIN_ROUNDS_OF_A_PEER,
    MIN_SPAN_S,
    WARM_UP_S,
    SoakSettings,
)
from benchmarks.soak.trends import Trend, trends

FIGURES: Final[dict[str, tuple[Callable[[Sample], float], float, str]]] = {
    "anonymous memory": (lambda s: s.anonymous_kib / 1024, MAX_MEMORY_MIB_PER_H, "MiB"),
    "descriptors": (lambda s: s.num_fds, MAX_FDS_PER_H, ""),
    "threads": (lambda s: s.num_threads, MAX_THREADS_PER_H, ""),
}
_UNCHECKED_KINDS: Final = ("store",)
"""Not ours; its memory follows what it stores. Shown all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold."""

    name: str
    good: bool
    found: str
    expected: str


def all_trends(outcome: Outcome) -> dict[str, list[Trend]]:
    """The trends by figure."""
    return {
        name: trends(outcome.samples, value, warm_up_s=WARM_UP_S, min_span_s=MIN_SPAN_S)
        for name, (value, _, _) in FIGURES.items()
    }


def judge(outcome: Outcome, settings: SoakSettings) -> list[Check]:
    """All checks of a soak."""
    return [
        *_check_state(outcome),
        *_check_goodput(outcome, settings),
        *_check_faults(outcome),
        *_check_trends(outcome),
        _nothing("nodes that ended by themselves", outcome.unexpected),
        _nothing("nodes that did not leave well", outcome.failed_to_leave),
        _nothing("orphans", [f"{pid} {line}" for pid, line in outcome.orphans.items()]),
        _nothing("files and sockets left", outcome.leftovers),
    ]


def _check_state(outcome: Outcome) -> list[Check]:
    return [
        _nothing("states that differ from the records", differing(outcome)),
        _nothing("peers that did not catch up", outcome.late),
    ]


def _check_goodput(outcome: Outcome, settings: SoakSettings) -> list[Check]:
    share, rounds = payload_goodput(outcome), rounds_goodput(outcome)
    by_peer = goodput_by_peer(outcome)
    worst = min(by_peer, key=lambda name: by_peer[name])
    floor = settings.min_goodput
    num_rounds, void = len(soaked(outcome)), sum(r.void for r in soaked(outcome))
    of_worst = _at_least(f"of the worst peer ({worst})", by_peer[worst], floor / 2)
    return [
        _at_least("payloads counted / possible", share, floor),
        *([of_worst] if num_rounds >= MIN_ROUNDS_OF_A_PEER else []),
        _at_least("rounds closed / possible", rounds, settings.min_rounds_goodput),
        Check(name="void rounds", good=void == 0, found=str(void), expected="0"),
    ]


def _check_faults(outcome: Outcome) -> list[Check]:
    def named(faults: list[Fault]) -> list[str]:
        return [f"{f.kind} {f.target}" for f in faults]

    return [
        _nothing("faults without proof", named([f for f in outcome.faults if not f.proof])),
        _nothing(
            "faults never recovered from",
            named([f for f in outcome.faults if recovery_s(outcome, f) is None]),
        ),
        Check(
            name="faults made",
            good=bool(outcome.faults),
            found=str(len(outcome.faults)),
            expected="some",
        ),
    ]


def _check_trends(outcome: Outcome) -> list[Check]:
    checks = []
    for name, found in all_trends(outcome).items():
        _, bound, unit = FIGURES[name]
        for trend in found:
            if trend.slope_per_h is None or trend.kind in _UNCHECKED_KINDS:
                continue
            checks.append(
                Check(
                    name=f"{name} of {trend.kind}, slope",
                    good=trend.slope_per_h <= bound,
                    found=f"{trend.slope_per_h:+.1f} {unit}/h",
                    expected=f"at most {bound:g} {unit}/h",
                )
            )
    highest = max((s.num_fds for s in outcome.samples if s.process.kind != "store"), default=0)
    checks.append(
        Check(
            name="most descriptors of a process",
            good=highest <= MAX_FDS,
            found=str(highest),
            expected=f"at most {MAX_FDS}",
        )
    )
    return checks


def _nothing(name: str, found: list[str]) -> Check:
    text = "none" if not found else f"{len(found)}: {'; '.join(found[:5])}"
    return Check(name=name, good=not found, found=text, expected="none")


def _at_least(name: str, found: float, bound: float) -> Check:
    return Check(
        name=name, good=found >= bound, found=f"{found:.1%}", expected=f"at least {bound:.0%}"
    )
