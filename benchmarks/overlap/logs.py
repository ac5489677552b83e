"""Reading nodes' event logs."""

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def events_of(file: Path) -> list[Event]:
    """The whole lines of an event log; none if there is no log yet."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="ascii").split("\n")
    return [json.loads(line) for line in lines[:-1]]
