import re

from hypothesis import given
from hypothesis import strategies as st

from shoal.node.store_keys import StoreKeys
from shoal.storage.keys import check_key, check_prefix
from tests.support.manifests import peer

DIGESTS = st.binary(min_size=32, max_size=32)


@given(DIGESTS, DIGESTS, st.integers(1, 10_000_000), st.integers(0, 999))
def test_every_key_is_of_hex_digits_numbers_and_fixed_words(run_id, digest, round_id, number):
    keys, who = StoreKeys(run_id), peer(number).peer
    made = [
        keys.manifest,
        keys.blob(digest),
        keys.payload(round_id, who),
        keys.hello(who),
        keys.attending(round_id, who),
        keys.published(round_id, who),
        keys.record(round_id),
        keys.copy(digest),
    ]
    assert len(set(made)) == len(made)
    for key in made:
        check_key(key)
        assert key.startswith(run_id.hex() + "/")
        assert re.fullmatch(r"[0-9a-z/]+", key)
    for prefix in (keys.attending_prefix(round_id), keys.published_prefix(round_id)):
        check_prefix(prefix)
    assert keys.attending(round_id, who) == keys.attending_prefix(round_id) + who.key.hex()
    assert keys.published(round_id, who) == keys.published_prefix(round_id) + who.key.hex()


@given(st.integers(1, 99_999_998))
def test_rounds_sort_as_numbers(round_id):
    keys = StoreKeys(bytes(32))
    assert keys.record(round_id) < keys.record(round_id + 1)


def test_the_layout_of_a_store_never_changes():
    keys, who = StoreKeys(bytes([0xAB]) * 32), peer(1).peer
    run, key = "ab" * 32, who.key.hex()
    assert keys.manifest == f"{run}/manifest"
    assert keys.blob(bytes(32)) == f"{run}/blobs/{'00' * 32}"
    assert keys.payload(7, who) == f"{run}/peers/{key}/payloads/00000007"
    assert keys.hello(who) == f"{run}/peers/{key}/hello"
    assert keys.attending(7, who) == f"{run}/rounds/00000007/attending/{key}"
    assert keys.published(7, who) == f"{run}/rounds/00000007/published/{key}"
    assert keys.record(7) == f"{run}/rounds/00000007/record"
    assert keys.copy(bytes(32)) == f"{run}/copies/{'00' * 32}"
