"""`python -m benchmarks.overlap.paced_node SECONDS join ...`: a node with its own accelerator.

It is `shoal` itself, with one difference: an inner step that is done early waits until SECONDS have
passed, as a node waits for an accelerator. So several peers on few cores each have a computer of
their own, whose speed is known; the step's arithmetic is done all the same.
"""

import sys
import threading
import time
from collections.abc import Callable

from shoal.node.app import main
from shoal.node.trainer import BatchSource, InnerResult, Trainer


def pace(step_s: float) -> None:
    """Makes every inner step of this process take `step_s` seconds at least."""
    run = Trainer.run

    def paced(
        self: Trainer,
        round_id: int,
        batches: BatchSource,
        *,
        out_of_time: Callable[[], bool],
        interrupt: threading.Event,
        on_step: Callable[[int, float], None],
        before_step: Callable[[], None],
    ) -> InnerResult:
        began_at_s = time.monotonic()

        def wait(step: int, loss: float) -> None:
            time.sleep(max(0.0, began_at_s + step * step_s - time.monotonic()))
            on_step(step, loss)

        return run(
            self,
            round_id,
            batches,
            out_of_time=out_of_time,
            interrupt=interrupt,
            on_step=wait,
            before_step=before_step,
        )

    Trainer.run = paced  # type: ignore[method-assign, assignment]  # this process is a benchmark's


if __name__ == "__main__":
    pace(float(sys.argv.pop(1)))
    main()
