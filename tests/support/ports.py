"""Ports for servers that are started later, perhaps again and again, by other processes.

Guarantees: those of `kept_ports`, as long as this process lives.
"""

from contextlib import ExitStack

from shoal.node.kept_ports import HOST, kept_ports

__all__ = ["HOST", "free_port"]

_kept = ExitStack()
free_port = _kept.enter_context(kept_ports())
"""A port of loopback that nobody else has, and nobody else is given later on."""
