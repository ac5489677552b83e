"""Events for tests of page, metrics and status: real logs and made-up rounds."""

import json
from pathlib import Path
from typing import Any

LOGS = Path(__file__).parent / "event_logs"
HOSTILE_PEER = '<img src=x onerror="document.title=1">\u202e'
"""The peer of one refused payload in hostile.jsonl."""

Event = dict[str, Any]


def log_events(name: str) -> list[Event]:
    """The events of `event_logs/<name>.jsonl`: peer, validator (a demo of 6 rounds), hostile."""
    lines = (LOGS / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def started(run_id: str = "ab" * 32, role: str = "peer") -> Event:
    """A node begins."""
    return {
        "event": "node-started",
        "time_s": 1000.0,
        "peer": "12D3KooWme0000",
        "role": role,
        "run_id": run_id,
        "round_id": 0,
    }


def report(round_id: int, **fields: object) -> Event:
    """A round's report as a node writes it."""
    peer = "12D3KooWRoundPeer01"
    whole: Event = {
        "event": "round",
        "time_s": 1000.0 + 10 * round_id,
        "round_id": round_id,
        "role": "peer",
        "state_hash": f"{round_id:064x}",
        "void": False,
        "counted": True,
        "replayed": False,
        "num_counted": 2,
        "num_accepted": 2,
        "rejected": {},
        "round_s": 10.0,
        "train_s": 7.0,
        "stage_s": 0.5,
        "upload_s": 0.5,
        "wait_s": 1.0,
        "apply_s": 1.0,
        "exposed_communication_s": 1.0,
        "communication_ratio": 0.1,
        "gather_latency_s": {peer: 0.25},
        "downloads": {peer[-6:]: {"num_bytes": 1000, "transfer_s": 0.125}},
        "uploaded_bytes": 500,
        "downloaded_bytes": 1500,
        "mean_loss": 7.0 - 0.01 * round_id,
        "held_out_loss": None,
        "tokens": 64,
    }
    return {**whole, **fields}
