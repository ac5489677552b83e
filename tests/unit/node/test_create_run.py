import asyncio
import os
from dataclasses import replace

import pytest

from shoal.node.config import load_run_plan
from shoal.node.create_run import Step, admit, make_run, prepare_data, store_run
from shoal.node.errors import ConfigError, ResourceError
from shoal.node.parameters import from_file, parameters_root
from shoal.node.run_context import make_spec
from shoal.node.store_keys import StoreKeys
from shoal.protocol.manifest import CodecSection, ModelSection, read_manifest
from shoal.protocol.schema import Settings
from shoal.storage.errors import AccessDeniedError, StorageUnavailableError
from tests.support.faulty_store import FaultyStore
from tests.support.manifests import VALIDATOR, layout_of, peer

PLAN = """
[run]
name = "tiny"
num_rounds = 2
[model]
model_type = "llama"
[model.settings]
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 2
max_position_embeddings = 16
tie_word_embeddings = true
pad_token_id = 0
bos_token_id = 1
eos_token_id = 1
[data]
texts = ["text.txt"]
vocab_size = 300
seq_len = 8
held_out_ratio = 0.2
[training]
inner_steps = 2
batch_size = 2
learning_rate = 1e-3
[timing]
round_seconds = 60.0
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Plan, data and a new run of a two-layer Llama."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "plan.toml").write_text(PLAN)
    (folder / "text.txt").write_text("".join(f"line {i} of a small text\n\n" for i in range(800)))
    plan = load_run_plan(folder / "plan.toml")
    data = prepare_data(plan, folder / "data")
    return plan, data, make_run(plan, data, (VALIDATOR.peer,), 1)


def test_the_manifest_names_exactly_what_was_made(made):
    plan, data, new = made
    manifest = new.manifest
    assert read_manifest(manifest.to_bytes()) == manifest
    base = from_file(new.genesis, manifest.tensors)
    assert parameters_root(manifest.tensors, base) == manifest.genesis.root
    assert [flat.size for flat in base] == list(manifest.sizes)
    assert manifest.limits.body_bytes == layout_of(manifest).body_bytes
    assert make_spec(manifest.codec).k_per_chunk == plan.codec.k_per_chunk
    assert manifest.data.shards[0].sha256 == data.shards[0].sha256
    assert manifest.validator_ids == (VALIDATOR.peer,)


def test_the_same_plan_gives_the_same_bytes(made):
    plan, data, new = made
    again = make_run(plan, data, (VALIDATOR.peer,), 1)
    assert again.manifest.to_bytes() == new.manifest.to_bytes()
    assert again.genesis == new.genesis
    other = replace(plan, genesis=replace(plan.genesis, seed=1))
    assert make_run(other, data, (VALIDATOR.peer,), 1).genesis != new.genesis


def test_the_manifest_is_stored_last(made):
    _, data, new = made
    store = FaultyStore()
    asyncio.run(store_run(new, data, store))
    keys = StoreKeys(new.manifest.run_id)
    puts = [key for verb, key in store.calls if verb == "put"]
    assert puts[-1] == keys.manifest
    named = [new.manifest.genesis.blob, *new.manifest.data.shards, new.manifest.data.held_out]
    assert {keys.blob(b.sha256) for b in named} <= set(puts[:-1])
    stored = asyncio.run(store.inner.get(keys.manifest, max_bytes=1 << 20))
    assert stored == new.manifest.to_bytes()


def test_a_store_that_fails_anywhere_leaves_no_manifest_and_the_next_call_sends_the_rest(made):
    _, data, new = made
    keys = StoreKeys(new.manifest.run_id)
    num_objects = len(data.shards) + 4
    for number in range(2 * num_objects):
        store = FaultyStore()
        store.fault = lambda verb, key, asked, n=number, s=store: (  # type: ignore[misc]
            StorageUnavailableError("503", key) if len(s.calls) == n + 1 else None
        )
        with pytest.raises(ResourceError):
            asyncio.run(store_run(new, data, store))
        assert store.num_injected == 1
        there = set(store.inner._objects)
        assert keys.manifest not in there
        second = FaultyStore(store.inner)
        asyncio.run(store_run(new, data, second))
        sent = [key for verb, key in second.calls if verb == "put"]
        assert not there & set(sent)
        assert sent[-1] == keys.manifest
        assert len(there) + len(sent) == num_objects


def test_every_object_is_told_before_and_after_it(made):
    _, data, new = made
    store = FaultyStore()
    for expected in ("sent", "there"):
        told: list[Step] = []
        asyncio.run(store_run(new, data, store, told.append))
        assert [step.stage for step in told] == ["begins", expected] * (len(told) // 2)
        assert told[-1].name == "manifest"
        assert told[-1].number == told[-1].num_objects == len(told) // 2


def test_what_is_there_stays_and_a_stump_is_told(made):
    _, data, new = made
    keys = StoreKeys(new.manifest.run_id)
    for key in (keys.manifest, keys.blob(new.manifest.genesis.blob.sha256)):
        store = FaultyStore()
        asyncio.run(store.put(key, b"a stump"))
        with pytest.raises(ResourceError, match=rf"7 bytes at {key}, where \d+ bytes belong"):
            asyncio.run(store_run(new, data, store))
        assert asyncio.run(store.inner.get(key, max_bytes=100)) == b"a stump"


def test_a_key_that_may_not_list_makes_a_run_too(made):
    _, data, new = made
    store = FaultyStore()
    # S3 does not tell such a key that an object is missing.
    store.fault = lambda verb, key, asked: (
        AccessDeniedError("403", key)
        if verb == "head" and key not in store.inner._objects
        else None
    )
    asyncio.run(store_run(new, data, store))
    assert store.num_injected == len(data.shards) + 4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": ModelSection(model_type="no-such-model")}, "model.model_type"),
        (
            {"model": ModelSection(model_type="llama", settings=Settings((("hidden_size", -1),)))},
            "model.settings",
        ),
        (
            {
                "model": ModelSection(
                    model_type="llama", settings=Settings((("hidden_size", 1 << 40),))
                )
            },
            "model.settings.hidden_size",
        ),
        ({"codec": CodecSection(chunk_size=16, k_per_chunk=17)}, "codec"),
        ({"codec": CodecSection(max_scale=0.1)}, "codec.max_scale"),
    ],
)
def test_a_plan_that_contradicts_itself_is_one_line(made, changes, field):
    plan, data, _ = made
    with pytest.raises(ConfigError) as caught:
        make_run(replace(plan, **changes), data, (VALIDATOR.peer,), 1)
    assert caught.value.field.startswith(field)


def test_more_signatures_than_validators_are_refused(made):
    plan, data, _ = made
    with pytest.raises(ConfigError, match=r"validators\.threshold"):
        make_run(plan, data, (VALIDATOR.peer,), 2)


def test_a_roster_admits_exactly_the_peers_given(made):
    plan, data, _ = made
    admitted = admit(plan, (peer(1).peer, peer(2).peer))
    manifest = make_run(admitted, data, (VALIDATOR.peer,), 1).manifest
    assert manifest.roster == frozenset({peer(1).peer, peer(2).peer})
    assert plan.admission.mode == "open"


def test_no_hub_is_asked():
    assert os.environ["HF_HUB_OFFLINE"] == "1"
