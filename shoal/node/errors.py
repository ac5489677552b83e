"""What can go wrong in a node, by whose fault it is and how the process ends.

    NodeError                     never raised itself; carries the exit code
      StoppedError                asked to stop before the first round: exit 0
      ConfigError                 a file or an option is wrong: exit 2
      StateInUseError             another process uses the same key or state folder: exit 2
      HaltError                   no round can go on: fork, diverged, key in use elsewhere: exit 3
        DivergedError             a record's state is not what its payloads give
      CheckpointError             the local state cannot be read back: exit 3
      ResourceError               disk full, store not readable: exit 4

A peer's fault is never one of these: it becomes a `Rejected` value with the peer and a code.
"""

from pathlib import Path

EXIT_CONFIG = 2
EXIT_HALTED = 3
EXIT_RESOURCE = 4


class NodeError(Exception):
    """Root; its text is one line for the person at the terminal."""

    exit_code = 1


class StoppedError(NodeError):
    """The node was asked to stop before it had begun."""

    exit_code = 0


class ConfigError(NodeError):
    """A configuration value is missing or wrong."""

    exit_code = EXIT_CONFIG

    def __init__(self, file: Path | str, field: str, expected: str, found: str) -> None:
        super().__init__(f"E_CONFIG {file}: {field}: expected {expected}, found {found}")
        self.file = str(file)
        self.field = field


class StateInUseError(NodeError):
    """Another process holds the key or the state folder."""

    exit_code = EXIT_CONFIG


class HaltError(NodeError):
    """The node must stop and says why; its state on disk is sound."""

    exit_code = EXIT_HALTED


class DivergedError(HaltError):
    """This node's computation and the certified record disagree."""


class CheckpointError(NodeError):
    """No whole checkpoint could be read."""

    exit_code = EXIT_HALTED


class ResourceError(NodeError):
    """The machine or the store lacks something: space, access."""

    exit_code = EXIT_RESOURCE
