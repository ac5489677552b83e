"""A node in the foreground of a terminal: what `shoal join` and `shoal validate` run.

Guarantees: the log goes to standard error; the last line says where the node got to. Does not do:
decide how the process ends.
"""

import asyncio
import logging
from pathlib import Path

from rich.console import Console

from shoal.node import stopping
from shoal.node.config import load_node_config
from shoal.node.manifest_file import load_manifest
from shoal.node.seed_options import with_seeds


def run_in_foreground(
    manifest_file: Path,
    config_file: Path,
    seeds: tuple[str, ...],
    *,
    validates: bool,
    leave_with_parent: bool,
) -> None:
    """Runs a node to its end, or until a signal asks it to leave.

    Args:
        manifest_file: the run.
        config_file: the node.toml.
        seeds: of the command line.
        validates: a validator, not a peer.
        leave_with_parent: end when standard input is closed.

    Raises:
        NodeError: as `run_node` says, or a file is wrong.
    """
    manifest = load_manifest(manifest_file)
    config = with_seeds(load_node_config(config_file), seeds)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if leave_with_parent:
        stopping.leave_with_parent()
    # After the files were read: it takes seconds to load, and a wrong file is said at once. Before
    # the event loop: there Ctrl+C would wait for its end.
    from shoal.node.start_node import run_node  # noqa: PLC0415

    async def run() -> None:
        stop = asyncio.Event()
        stopping.install(stop)
        result = await run_node(manifest, config, validates=validates, stop=stop)
        verb = "finished" if result.outcome.finished else "stopped after"
        Console().print(
            f"{verb} round {result.outcome.round_id}, state {result.state_hash.hex()[:16]}, "
            f"parameters {result.parameters_root.hex()[:16]}",
            soft_wrap=True,
        )

    asyncio.run(run())
