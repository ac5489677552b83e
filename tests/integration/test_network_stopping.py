"""A network process that is being replaced when its node stops is waited for all the same."""

import asyncio
import gc
import logging
import os
import signal
from pathlib import Path

import pytest

from shoal.node.network import supervisor
from shoal.node.network.client import NetworkClient
from shoal.node.network.messages import Start
from shoal.protocol.identity import from_seed
from tests.support.processes import is_alive
from tests.support.s3_bad_server import until

pytestmark = pytest.mark.slow


def test_a_node_that_stops_while_a_hung_process_is_replaced_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_PING_EVERY_S", 0.2)
    monkeypatch.setattr(supervisor, "_PING_TIMEOUT_S", 1.0)
    # It is not over by itself while the test looks.
    monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 600.0)
    options = Start(folder=str(tmp_path), run_id=bytes(32), round_ms=60_000, allow_private=True)

    def num_failed_pings() -> int:
        return sum("ping of the network" in record.message for record in caplog.records)

    async def scenario() -> int:
        async with NetworkClient(options, from_seed(bytes(32))) as network:
            hung = (await network.status()).process_id
            caplog.clear()
            os.kill(hung, signal.SIGSTOP)
            # The second one is the last: now its end is waited for.
            await until(lambda: num_failed_pings() == 2)
            assert is_alive(hung)
        return hung

    with caplog.at_level(logging.WARNING):
        hung = asyncio.run(scenario())
    assert not is_alive(hung)
    # What nobody has waited for complains here, and warnings are errors.
    gc.collect()
