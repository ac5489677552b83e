"""What doctor says about a node's own caps and quotas."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.node.config import (
    BandwidthConfig,
    NetworkConfig,
    NodeConfig,
    PayloadsConfig,
    StoreConfig,
)
from shoal.node.doctor_bandwidth import check_bandwidth
from shoal.node.doctor_lines import Level
from shoal.node.monthly_use import FILE_NAME, MonthlyUse
from shoal.protocol.manifest import RunManifest
from tests.support.manifests import tiny_manifest

TINY = tiny_manifest()
ROUND_S = TINY.timing.round_seconds


def run_with(payload_bytes: int) -> RunManifest:
    limits = replace(TINY.limits, body_bytes=payload_bytes)
    return replace(TINY, limits=limits)


def config_of(folder: Path, payloads: str = "store", **bandwidth: int) -> NodeConfig:
    return NodeConfig(
        key_file="key.pem",
        state_dir=str(folder),
        store=StoreConfig(kind="http", url="http://127.0.0.1:1"),
        payloads=PayloadsConfig(kind=payloads),
        network=NetworkConfig(enabled=payloads == "p2p"),
        bandwidth=BandwidthConfig(**bandwidth),
    )


def test_a_damaged_book_is_said_and_left_for_the_node_to_say(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"{")
    for _ in range(2):
        line = check_bandwidth(TINY, config_of(tmp_path), trains=True)[0]
        assert line.level is Level.WARNING
        assert FILE_NAME in line.found
    assert (tmp_path / FILE_NAME).read_bytes() == b"{"


def test_no_limits_are_one_ok_line(tmp_path: Path) -> None:
    (line,) = check_bandwidth(TINY, config_of(tmp_path), trains=True)
    assert line.level is Level.OK


@pytest.mark.parametrize(
    ("share", "level"), [(0.1, Level.OK), (0.3, Level.WARNING), (0.7, Level.FAILURE)]
)
def test_an_upload_is_held_against_the_round(tmp_path: Path, share: float, level: Level) -> None:
    bulk = 950_000
    manifest = run_with(int(share * ROUND_S * bulk))
    config = config_of(tmp_path, upload_bytes_per_s=1_000_000)
    (line,) = check_bandwidth(manifest, config, trains=True)
    assert line.level is level
    assert f"of your {ROUND_S:.0f} s at your cap" in line.found
    seconds = float(line.found.split("takes ")[1].split(" s")[0])
    assert seconds == pytest.approx(share * ROUND_S, rel=0.05)


def test_payloads_over_libp2p_have_three_quarters_of_the_bulk(tmp_path: Path) -> None:
    manifest = run_with(7_125_000)
    config = config_of(tmp_path, "p2p", upload_bytes_per_s=1_000_000)
    (line,) = check_bandwidth(manifest, config, trains=True)
    assert "takes 10.0 s" in line.found


def test_a_validator_uploads_no_payload(tmp_path: Path) -> None:
    config = config_of(tmp_path, upload_bytes_per_s=70_000)
    (line,) = check_bandwidth(run_with(10**9), config, trains=False)
    assert line.level is Level.OK


def test_a_cap_that_servers_give_up_is_a_failure(tmp_path: Path) -> None:
    config = config_of(tmp_path, upload_bytes_per_s=70_000)
    (line,) = check_bandwidth(TINY, config, trains=True)
    assert line.level is Level.FAILURE
    assert "give up" in line.found
    assert "upload_bytes_per_s" in line.fix


def test_a_quota_is_told_in_time(tmp_path: Path) -> None:
    rounds_a_month = 30 * 86_400 / ROUND_S
    enough = int(TINY.payload_bytes * rounds_a_month * 2)
    config = config_of(tmp_path, monthly_upload_bytes=enough)
    (line,) = check_bandwidth(TINY, config, trains=True)
    assert line.level is Level.OK
    config = config_of(tmp_path, monthly_upload_bytes=enough // 20)
    (line,) = check_bandwidth(TINY, config, trains=True)
    assert line.level is Level.WARNING
    assert "for about 3 days" in line.found


def test_a_used_up_quota_is_a_failure(tmp_path: Path) -> None:
    book = MonthlyUse(tmp_path / FILE_NAME, time.time, up_bytes=0, down_bytes=0)
    book.add("down", 2000)
    book.save()
    config = config_of(tmp_path, monthly_download_bytes=2000)
    (line,) = check_bandwidth(TINY, config, trains=True)
    assert line.level is Level.FAILURE
    assert "E_QUOTA" in line.found
