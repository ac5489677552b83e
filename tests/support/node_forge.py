"""Starts nodes quickly: one process imports torch once, every node is a fork of it.

A node is a process of its own, runs the program's own entry point with its own arguments, and is
killed as any other; only the seconds of importing are spared. Run as a program it reads one JSON
line per wish from standard input and answers with one. When its input ends it kills its children.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.support import namespaces

CLOCK_FILE = "SHOAL_TEST_CLOCK_FILE"
"""Names a file with seconds that the node's wall clock is ahead."""


def serve() -> None:
    """The program's loop."""
    import torch  # noqa: PLC0415  # the forge imports what nodes need; its clients do not
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: PLC0415  # as above
    from typer.testing import CliRunner  # noqa: PLC0415  # as above

    import shoal.node.start_node  # noqa: F401, PLC0415  # as above
    from shoal.node.app import app  # noqa: PLC0415  # as above

    # Tests send Ctrl+C; a command that was started in the background has it ignored from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert AutoModelForCausalLM is not LlamaForCausalLM
    torch.set_num_threads(1)
    # A first command imports what typer and inspect need.
    CliRunner().invoke(app, ["inspect", os.devnull])
    gc.freeze()
    ended: dict[int, int] = {}
    children: set[int] = set()
    print("ready", flush=True)  # noqa: T201  # the answer
    try:
        for line in sys.stdin:
            answer = _answer(json.loads(line), children, ended)
            print(json.dumps(answer), flush=True)  # noqa: T201  # the answer
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _answer(wish: dict[str, Any], children: set[int], ended: dict[int, int]) -> Any:
    if "argv" in wish:
        pid = os.fork()
        if pid == 0:
            _become_node(wish["argv"], wish["log"], wish.get("env", {}), wish.get("namespace", ""))
        children.add(pid)
        return pid
    pid = wish["pid"]
    if pid in children:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children.discard(pid)
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended.get(pid)


def _set_clock(file: Path) -> None:
    """The wall clock runs ahead by the seconds that stand in a file, which a test may change."""
    real = time.time
    time.time = lambda: real() + float(file.read_text())


def _become_node(argv: list[str], log: str, env: dict[str, str], namespace: str) -> None:
    code = 1
    try:
        os.setsid()
        if namespace:
            namespaces.enter(namespace)
        os.environ.update(env)
        if CLOCK_FILE in env:
            _set_clock(Path(env[CLOCK_FILE]))
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = ["shoal", *argv]
        from shoal.node.app import main  # noqa: PLC0415  # imported before

        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001  # what the interpreter would do: a traceback and code 1
        import traceback  # noqa: PLC0415  # rarely

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            # Full, if a test wants it so: then too this process must not become the forge.
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
