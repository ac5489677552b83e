"""What `shoal init` shows while objects go into the store.

Guarantees: a line for every object once it is there; on a terminal besides them what is under way,
with the bytes that have left this machine. Does not do: anything to the store.
"""

import time
from contextlib import ExitStack
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from shoal.node.create_run import Step
from shoal.node.doctor_lines import size_text
from shoal.storage.progress import Progress, keeping


class InitView:
    """Use it as a context manager around the work, and `tell` as its listener."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(time.monotonic)
        self._step: Step | None = None
        self._base_bytes = 0
        self._held = ExitStack()

    def __enter__(self) -> "InitView":
        self._held.enter_context(keeping(self._progress))
        if self._console.is_terminal:
            live = Live(
                console=self._console, get_renderable=lambda: Text(self.under_way()), transient=True
            )
            self._held.enter_context(live)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    def tell(self, step: Step) -> None:
        """Takes what happens to an object."""
        if step.stage == "begins":
            self._step, self._base_bytes = step, self._progress.num_bytes
            return
        self._step = None
        words = "there already" if step.stage == "there" else "sent"
        line = f"{step.number:4} of {step.num_objects}  {step.name}  {size_text(step.num_bytes)}"
        self._console.print(f"{line}  {words}", highlight=False, soft_wrap=True)

    def under_way(self) -> str:
        """What is being done now, in words."""
        step = self._step
        if step is None:
            return "making tokenizer, shards, genesis"
        # Attempts that failed have moved bytes too.
        moved = min(self._progress.num_bytes - self._base_bytes, step.num_bytes)
        return f"{step.name}: {size_text(moved)} of {size_text(step.num_bytes)} have left"
