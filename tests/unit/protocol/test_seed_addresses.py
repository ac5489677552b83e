"""Which texts a manifest may name as seeds."""

import pytest

from shoal.protocol.errors import InvalidManifestError
from shoal.protocol.manifest import EndpointsSection, check_manifest, read_manifest
from shoal.protocol.seed_addresses import MAX_SEEDS, is_seed
from tests.support.manifests import tiny_manifest

ID = "QmSW7TgokpiETjXFxzh9GbEJQeTDfJ5fWr24p7o2fGjdZK"


@pytest.mark.parametrize(
    "text",
    [
        f"/ip4/1.2.3.4/tcp/4001/p2p/{ID}",
        f"/ip4/1.2.3.4/udp/4001/quic-v1/p2p/{ID}",
        f"/ip6/2606:4700::1111/tcp/65535/p2p/{ID}",
        f"/ip6/::/tcp/1/p2p/{ID}",
        f"/dns4/seed.run.example/tcp/1/p2p/{ID}",
        f"/dns6/a/udp/1/quic-v1/p2p/{ID}",
        "/dnsaddr/run.example",
        f"/dnsaddr/_x.run-1.example/p2p/{ID}",
    ],
)
def test_a_seed_is_an_address_with_an_id_or_a_name_to_look_up(text):
    assert is_seed(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "run.example",
        "/ip4/1.2.3.4/tcp/4001",
        f"/ip4/1.2.3.4/tcp/0/p2p/{ID}",
        f"/ip4/1.2.3.4/tcp/04001/p2p/{ID}",
        f"/ip4/1.2.3.4/tcp/65536/p2p/{ID}",
        f"/ip4/1.2.3/tcp/1/p2p/{ID}",
        f"/ip4/1.2.3.04/tcp/1/p2p/{ID}",
        f"/ip4/::1/tcp/1/p2p/{ID}",
        f"/ip6/0:0:0:0:0:0:0:1/tcp/1/p2p/{ID}",
        f"/ip6/::FFFF/tcp/1/p2p/{ID}",
        f"/dns4/SEED.example/tcp/1/p2p/{ID}",
        f"/dns4/seed.example./tcp/1/p2p/{ID}",
        f"/dns4/-x.example/tcp/1/p2p/{ID}",
        f"/ip4/1.2.3.4/tcp/1/ws/p2p/{ID}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{ID}/p2p-circuit/p2p/{ID}",
        f"/ip4/1.2.3.4/tcp/1/p2p/{ID}\n",
        "/dnsaddr/",
        "/dnsaddr/a..b",
        "/dnsaddr/run.example/p2p/short",
        "/dnsaddr/" + "a" * 64 + ".example",
        "/dnsaddr/" + ".".join(["a" * 60] * 5),
    ],
)
def test_nothing_else_is_a_seed(text):
    assert not is_seed(text)


def with_seeds(*seeds):
    return tiny_manifest(endpoints=EndpointsSection(seeds=seeds))


def test_seeds_are_part_of_the_manifest_and_of_its_hash():
    manifest = with_seeds("/dnsaddr/run.example", f"/ip4/1.2.3.4/tcp/1/p2p/{ID}")
    assert read_manifest(manifest.to_bytes()) == manifest
    assert manifest.run_id != tiny_manifest().run_id


@pytest.mark.parametrize(
    "seeds",
    [
        ("nonsense",),
        ("/dnsaddr/a", "/dnsaddr/a"),
        tuple(f"/dnsaddr/n{i}" for i in range(MAX_SEEDS + 1)),
    ],
)
def test_a_manifest_with_other_seeds_is_refused(seeds):
    with pytest.raises(InvalidManifestError, match=r"endpoints\.seeds"):
        check_manifest(with_seeds(*seeds))
