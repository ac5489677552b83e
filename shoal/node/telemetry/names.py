"""Names of events and metrics: constants, frozen by a test, because people build on them."""

from enum import StrEnum


class EventName(StrEnum):
    """The `event` of a line of the event log."""

    NODE_STARTED = "node-started"
    CAUGHT_UP = "caught-up"
    ROUND_OPENED = "round-opened"
    INNER_STEP = "inner-step"
    PAYLOAD_STAGED = "payload-staged"
    PAYLOAD_PUBLISHED = "payload-published"
    PAYLOAD_ACCEPTED = "payload-accepted"
    PAYLOAD_REJECTED = "payload-rejected"
    RECORD_REJECTED = "record-rejected"
    RECORD_WRITTEN = "record-written"
    ROUND = "round"
    BANDWIDTH = "bandwidth"
    WARNING = "warning"
    NODE_STOPPED = "node-stopped"
