"""What `shoal join URL` and `shoal join MULTIADDR` do and say before the node starts.

Guarantees: which run, which key and which folder it is stands on the screen before anything is
trained; what doctor calls a failure stops it.
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from shoal.node.config import load_node_config
from shoal.node.doctor import examine
from shoal.node.doctor_lines import Level, print_findings
from shoal.node.errors import ConfigError
from shoal.node.joining import Home, find_home
from shoal.node.seed_options import with_seeds


@dataclass(frozen=True, slots=True)
class Ready:
    """What the node starts from."""

    manifest_file: Path
    config_file: Path
    seeds: tuple[str, ...]
    """Besides those of the configuration."""


def prepare_home(source: str, root: Path, proxy: str, seeds: tuple[str, ...]) -> Ready | None:
    """Key, configuration and doctor's checks, each told to the user.

    Args:
        source: URL or multiaddr, perhaps with #<run id>.
        root: below it every run has a folder; ~ is this user's home.
        proxy: for HTTP; empty: none.
        seeds: of the command line.

    Returns:
        What to start from; None where doctor found a failure.

    Raises:
        ConfigError: the source is none, or the run is another than the pinned one.
        ResourceError: nobody answers, or the folder cannot be made.
    """
    num_threads = max((os.cpu_count() or 2) // 2, 1)
    home = asyncio.run(find_home(source, _with_home(root), num_threads, proxy))
    _say(Console(), home)
    config = load_node_config(home.config_file)
    _say_if_moved(Console(), home, config.store.url, source)
    seeds = tuple(dict.fromkeys((*seeds, *home.seeds)))
    config = with_seeds(config, seeds)
    lines = asyncio.run(examine(home.manifest, config))
    print_findings([line for line in lines if line.level is not Level.OK])
    if any(line.level is Level.FAILURE for line in lines):
        return None
    return Ready(home.config_file.parent / "manifest.json", home.config_file, seeds)


def _with_home(root: Path) -> Path:
    try:
        return root.expanduser()
    except RuntimeError as error:
        expected = "a folder to keep keys and state in (this user has no home)"
        raise ConfigError("command line", "--home", expected, str(root)) from error


def _say_if_moved(console: Console, home: Home, known_url: str, source: str) -> None:
    """The user's own file is not rewritten, and what it names is used."""
    place = source.partition("#")[0].rstrip("/")
    if known_url and known_url.rstrip("/") != place:
        told = f"{home.config_file} names {known_url}, which is used: change url there if it moved"
        console.print(told, highlight=False, markup=False, soft_wrap=True)


def _say(console: Console, home: Home) -> None:
    folder = home.config_file.parent
    told = [
        f"run {home.manifest.run_id.hex()} ({ascii(home.manifest.run.name)[1:-1]})",
        f"peer {home.peer}",
        f"folder {folder}",
    ]
    if not home.is_pinned:
        told.append(
            "No run id was given: this is the run that answers there. Compare the id with the one "
            "that whoever runs it has published, or join with #ID behind the address."
        )
    if home.is_new:
        told.append(
            f"A new key was made. Back it up: {folder / 'key.pem'} is this node's identity and its "
            "standing in the run, and nobody can make it again."
        )
    console.print("\n".join(told), highlight=False, markup=False, soft_wrap=True)
