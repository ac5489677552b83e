"""The command line: `shoal swarm | init | join | validate | doctor | status | inspect | data ..`.

Guarantees: an expected failure is one line on standard error and an exit code (2 configuration,
3 halted, 4 machine or store, 130 second Ctrl+C), never a traceback; an unexpected one is a
traceback and exit code 1, because then we want to see it. Each command is one call.
"""

import asyncio
import contextlib
import errno
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shoal.node.data.errors import DataError
from shoal.node.errors import EXIT_CONFIG, EXIT_RESOURCE, ConfigError, NodeError
from shoal.node.looking import is_there
from shoal.node.printable import printable
from shoal.protocol.errors import LocalProtocolError, ProtocolError
from shoal.storage.errors import StorageError

app = typer.Typer(
    name="shoal",
    help="Train one language model on many machines that do not trust each other.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Make token shards from texts.", no_args_is_help=True)
app.add_typer(data_app, name="data")

ManifestArgument = Annotated[Path, typer.Argument(help="The run's manifest.json.")]
ConfigOption = Annotated[Path, typer.Option("--config", help="This node's node.toml.")]
SeedOption = Annotated[
    list[str] | None, typer.Option("--seed", help="Multiaddr of a peer to ask first; repeat it.")
]
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
ParentOption = Annotated[bool, typer.Option("--leave-with-parent", hidden=True)]


def main() -> None:
    """Entry point of the `shoal` command."""
    try:
        app()
    except NodeError as error:
        _fail(str(error), error.exit_code)
    except (DataError, LocalProtocolError) as error:
        _fail(str(error), EXIT_RESOURCE if _lacks_room(error) else EXIT_CONFIG)
    except (ProtocolError, StorageError) as error:
        _fail(str(error), EXIT_RESOURCE)
    except OSError as error:
        # Only the terminal's end lets one through: a full disk behind it, say.
        if error.errno not in _NO_ROOM:
            raise
        _fail(f"cannot write {error.filename or 'the output'}: {error.strerror}", EXIT_RESOURCE)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(message: str, exit_code: int) -> None:
    line = f"shoal: {printable(message)}"
    with contextlib.suppress(OSError):
        Console(stderr=True).print(line, style="bold red", markup=False, soft_wrap=True)
    sys.exit(exit_code)


def _lacks_room(error: Exception) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _NO_ROOM


@app.command()
def keygen(path: Annotated[Path, typer.Argument(help="Where to put the new key.")]) -> None:
    """Make a node's key; back it up, it is the node's identity."""
    from shoal.protocol.identity import generate, save_key

    identity = generate()
    save_key(path, identity)
    Console().print(f"peer   {identity.peer.text}\nkey    {identity.peer.key.hex()}")
    Console().print(f"Keep a copy of {path}: whoever has it is this node.", soft_wrap=True)


@data_app.command("prepare")
def data_prepare(
    texts: Annotated[list[Path], typer.Argument(help="UTF-8 texts: .txt, .txt.xz, .txt.gz.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the shards.")],
    vocab_size: Annotated[int, typer.Option(help="Entries of the byte-level BPE.")] = 4096,
    shard_tokens: Annotated[int, typer.Option(help="Tokens per shard.")] = 1 << 26,
    held_out_ratio: Annotated[float, typer.Option(help="Share that nobody trains on.")] = 0.02,
) -> None:
    """Train a tokenizer on texts and write token shards."""
    from shoal.node.data.prepare import prepare

    prepared = prepare(
        texts,
        out,
        vocab_size=vocab_size,
        shard_tokens=shard_tokens,
        held_out_ratio=held_out_ratio,
    )
    for shard in (*prepared.shards, prepared.held_out):
        tokens = prepared.num_tokens(shard)
        Console().print(f"{shard.path}  {tokens:,} tokens  {shard.sha256.hex()}", soft_wrap=True)


@app.command()
def init(
    plan: Annotated[Path, typer.Argument(help="The run plan, a TOML file.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write manifest.json.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The validator's node.toml: its store, its key."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="Instead: root folder of the store.")
    ] = None,
    validator: Annotated[
        list[str] | None, typer.Option(help="Peer id of a validator, if not --config's.")
    ] = None,
    work: Annotated[Path, typer.Option("--work", help="Folder for shards.")] = Path("data"),
    threshold: Annotated[int, typer.Option(help="Validators that must sign.")] = 1,
) -> None:
    """Start a run: make genesis, shards and manifest, and put them into the store."""
    from shoal.node.init_run import init_run, init_run_at
    from shoal.node.init_view import InitView

    console, ids = Console(), validator or []
    with InitView(console) as view:
        if store is not None and config is None:
            manifest = init_run(plan, store, out, ids, work, threshold, view.tell)
        elif config is not None and store is None:
            manifest = init_run_at(plan, config, out, ids, work, threshold, view.tell)
        else:
            expected = "either a node.toml, or --store with a folder"
            raise ConfigError("command line", "--config", expected, "both" if store else "neither")
    console.print(f"run        {manifest.run_id.hex()}", soft_wrap=True)
    console.print(f"parameters {sum(manifest.sizes):,}")
    console.print(f"payload    {manifest.payload_bytes:,} bytes")
    console.print(f"manifest   {out}", soft_wrap=True)
    for seed in manifest.endpoints.seeds[:1]:
        line = f"join       shoal join {seed}#{manifest.run_id.hex()}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def join(
    run: Annotated[str, typer.Argument(help="URL or multiaddr of the run, or its manifest.json.")],
    config: Annotated[Path | None, typer.Option("--config", help="This node's node.toml.")] = None,
    home: Annotated[
        Path, typer.Option("--home", help="Without --config: folder for keys and state.")
    ] = Path("~/.shoal"),
    proxy: Annotated[
        str, typer.Option("--proxy", help="With a URL: http://HOST:PORT to go through.")
    ] = "",
    seed: SeedOption = None,
    leave_with_parent: ParentOption = False,
) -> None:
    """Train in a run: a URL or multiaddr is enough; with a file --config says the rest."""
    from shoal.node.joining import names_a_run

    seeds = tuple(seed or ())
    if config is None and not names_a_run(run):
        if not is_there(Path(run), "RUN"):
            expected = "http://HOST:PORT or another URL, a multiaddr, or a manifest file"
            raise ConfigError("command line", "RUN", expected, run)
        expected = "a node.toml beside a manifest file"
        raise ConfigError("command line", "--config", expected, "nothing")
    file = Path(run)
    if config is None:
        from shoal.node.first_run import prepare_home

        ready = prepare_home(run, home, proxy, seeds)
        if ready is None:
            raise typer.Exit(EXIT_CONFIG)
        file, config, seeds = ready.manifest_file, ready.config_file, ready.seeds
    _run_node(file, config, seeds, validates=False, leave_with_parent=leave_with_parent)


@app.command()
def validate(
    manifest: ManifestArgument,
    config: ConfigOption,
    seed: SeedOption = None,
    leave_with_parent: ParentOption = False,
) -> None:
    """Check payloads and close rounds."""
    seeds = tuple(seed or ())
    _run_node(manifest, config, seeds, validates=True, leave_with_parent=leave_with_parent)


@app.command()
def doctor(
    manifest: ManifestArgument,
    config: ConfigOption,
    seed: SeedOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Check, before joining, whether this node will work in this run."""
    from shoal.node.config import load_node_config
    from shoal.node.doctor import examine
    from shoal.node.doctor_lines import exit_code, print_findings
    from shoal.node.manifest_file import load_manifest
    from shoal.node.seed_options import with_seeds

    node = with_seeds(load_node_config(config), tuple(seed or ()))
    lines = asyncio.run(examine(load_manifest(manifest), node))
    if as_json:
        for line in lines:
            fields = {"code": line.code, "level": line.level, "found": line.found, "fix": line.fix}
            print(json.dumps(fields))  # noqa: T201  # for machines: no wrapping, no colours
    else:
        print_findings(lines)
    raise typer.Exit(exit_code(lines))


@app.command()
def status(
    path: Annotated[Path, typer.Argument(help="A node's state folder or a swarm's folder.")],
    watch: Annotated[bool, typer.Option("--watch", help="Redraw every second.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show what a node or a swarm is doing, from its event logs."""
    from shoal.node.status_view import show_status

    show_status(path, Console(), watch=watch, as_json=as_json)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A payload, record, announcement or manifest.")],
    manifest: Annotated[Path | None, typer.Option(help="The run's manifest.json.")] = None,
) -> None:
    """Print a received object readably and say what is wrong with it."""
    from shoal.node.inspecting import inspect_file
    from shoal.node.manifest_file import load_manifest

    found = inspect_file(file, None if manifest is None else load_manifest(manifest))
    console = Console()
    console.print(found.kind, style="bold", highlight=False)
    width = max(map(len, found.facts), default=0)
    for name, value in found.facts.items():
        line = printable(f"{name:{width}}  {value}")
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    if found.problem:
        problem = printable(found.problem)
        console.print(f"BAD  {problem}", style="bold red", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    console.print(f"OK   checked: {found.checked}", style="green", markup=False, soft_wrap=True)


@app.command()
def swarm(
    config: Annotated[Path, typer.Option("--config", help="The run plan.")],
    run_dir: Annotated[Path, typer.Option("--run-dir", help="Folder of everything.")],
    peers: Annotated[int | None, typer.Option(help="Peers, instead of the plan's.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of the plan's.")] = None,
    store: Annotated[
        str, typer.Option(help="How nodes exchange objects: directory, http, s3 or p2p.")
    ] = "directory",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over in this folder.")] = False,
    web: Annotated[
        str, typer.Option("--web", help="The nodes' pages: the first one's port, or auto.")
    ] = "",
) -> None:
    """Train with several peers and a validator, each a process, on this machine."""
    from shoal.node.swarm import run_swarm
    from shoal.node.swarm_stores import StoreKind

    if store not in list(StoreKind):
        raise ConfigError("command line", "--store", "directory, http, s3 or p2p", store)
    asyncio.run(
        run_swarm(
            config,
            run_dir,
            num_peers=peers,
            num_rounds=rounds,
            store=StoreKind(store),
            fresh=fresh,
            web=web,
        )
    )


def _run_node(
    manifest_file: Path,
    config_file: Path,
    seeds: tuple[str, ...],
    *,
    validates: bool,
    leave_with_parent: bool,
) -> None:
    from shoal.node.foreground import run_in_foreground

    ends = {"validates": validates, "leave_with_parent": leave_with_parent}
    run_in_foreground(manifest_file, config_file, seeds, **ends)
