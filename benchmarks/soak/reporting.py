"""report.json and summary.md of a soak."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.compression.measuring import machine_line
from benchmarks.soak.judging import FIGURES, Check, all_trends
from benchmarks.soak.outcome import (
    Outcome,
    goodput_by_peer,
    last_rounds,
    payload_goodput,
    recovery_s,
    rounds_goodput,
    soaked,
    undisturbed_round_s,
)
from benchmarks.soak.settings import SoakSettings


def report_of(outcome: Outcome, settings: SoakSettings, checks: list[Check]) -> dict[str, Any]:
    """Everything as plain values."""
    rounds = soaked(outcome)
    last = outcome.records[-1].record if outcome.records else None
    with_faults = rounds[-1].round_id if rounds else None
    return {
        "good": all(check.good for check in checks),
        "machine": machine_line(),
        "settings": {**asdict(settings), "out": str(settings.out)},
        "checks": [asdict(check) for check in checks],
        "rounds": {
            "closed": len(rounds),
            "void": sum(r.void for r in rounds),
            "close_reasons": dict(Counter(str(r.close_reason) for r in rounds)),
            "seconds": outcome.ended_at_s - outcome.began_at_s,
            "undisturbed_round_s": undisturbed_round_s(outcome),
            "closed_of_possible": rounds_goodput(outcome),
        },
        "payloads": {
            "counted": sum(len(r.counted) for r in rounds),
            "possible": len(rounds) * len(outcome.peers),
            "counted_of_possible": payload_goodput(outcome),
            "by_peer": goodput_by_peer(outcome),
            "rejected": _rejected(outcome),
        },
        "state": {
            "last_round": None if last is None else last.round_id,
            "last_round_with_faults": with_faults,
            "state_hash": None if last is None else last.state.hex(),
            "last_round_of_nodes": last_rounds(outcome.views),
        },
        "faults": [
            {**asdict(fault), "recovery_s": recovery_s(outcome, fault)} for fault in outcome.faults
        ],
        "trends": {
            name: [asdict(trend) for trend in found] for name, found in all_trends(outcome).items()
        },
    }


def _rejected(outcome: Outcome) -> dict[str, int]:
    """Rejected payloads by code, all nodes together; there is no bad peer in a soak."""
    total: Counter[str] = Counter()
    for view in outcome.views:
        total.update(view.rejected)
    return dict(total)


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Writes report.json and summary.md."""
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "summary.md").write_text(markdown(report))


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    rounds, payloads = report["rounds"], report["payloads"]
    settings = report["settings"]
    what = (
        f"{settings['num_s3']} peers on S3, {settings['num_p2p']} on libp2p, "
        f"{len(report['faults'])} faults in {rounds['seconds'] / 60:.1f} minutes, seed "
        f"{settings['seed']}."
    )
    goodput = (
        f"Goodput: {payloads['counted']} of {payloads['possible']} payloads counted "
        f"({payloads['counted_of_possible']:.1%}); {rounds['closed']} rounds closed "
        f"({rounds['void']} void), {rounds['closed_of_possible']:.1%} of what undisturbed rounds "
        f"of {rounds['undisturbed_round_s']:.1f} s would have been."
    )
    why = (
        f"Why rounds closed: {rounds['close_reasons']}. Rejected payloads: "
        f"{payloads['rejected'] or 'none'}."
    )
    lines = [
        f"# Soak: {'as it must be' if report['good'] else 'NOT as it must be'}",
        "",
        report["machine"],
        "",
        what,
        goodput,
        why,
        "",
        *_table(
            ("check", "found", "must be", ""),
            [
                (c["name"], c["found"], c["expected"], "ok" if c["good"] else "**FAILED**")
                for c in report["checks"]
            ],
        ),
        "## Faults",
        "",
        *_table(("fault", "times", "recovery, median", "worst"), _fault_rows(report["faults"])),
        "## Slopes after a process's first minutes",
        "",
        *_table(
            ("figure", "process", "series (long)", "hours", "slope/h", "worst/h", "highest"),
            _trend_rows(report["trends"]),
        ),
    ]
    return "\n".join(lines)


def _fault_rows(faults: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind in sorted({fault["kind"] for fault in faults}):
        found = [fault["recovery_s"] for fault in faults if fault["kind"] == kind]
        known = sorted(one for one in found if one is not None)
        shown = (f"{known[len(known) // 2]:.0f} s", f"{known[-1]:.0f} s") if known else ("-", "-")
        rows.append((kind, str(len(found)), *shown))
    return rows


def _trend_rows(by_figure: dict[str, list[dict[str, Any]]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for figure, found in by_figure.items():
        unit = FIGURES[figure][2]
        for trend in found:
            slopes = [
                "-" if trend[name] is None else f"{trend[name]:+.1f} {unit}"
                for name in ("slope_per_h", "worst_per_h")
            ]
            series = f"{trend['num_series']} ({trend['num_long']})"
            highest = f"{trend['highest']:.0f} {unit}"
            hours = f"{trend['hours']:.1f}"
            rows.append((figure, trend["kind"], series, hours, *slopes, highest))
    return rows


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return [*lines, ""]
