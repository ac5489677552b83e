from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.node.buckets import run_bucket
from shoal.node.config import NodeConfig, RunPlan, load_node_config, load_run_plan
from shoal.node.errors import EXIT_CONFIG, ConfigError

ROOT = Path(__file__).parents[3]
NODE = """
key_file = "key.pem"
state_dir = "state"

[store]
kind = "directory"
path = "../store"
"""
PLAN = (ROOT / "configs" / "demo.toml").read_text()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "file.toml"


def refused(load, file, text):
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    error = caught.value
    assert error.exit_code == EXIT_CONFIG
    assert error.file == str(file)
    assert str(error).startswith(f"E_CONFIG {file}: {error.field}: expected ")
    assert ", found " in str(error)
    return error


def test_paths_of_a_node_are_relative_to_its_file(file):
    file.write_text(NODE)
    found = load_node_config(file)
    assert found.key_file == str(file.parent / "key.pem")
    assert found.state_dir == str(file.parent / "state")
    assert Path(found.store.path).resolve() == file.parent.parent / "store"


def test_absolute_paths_stay(file):
    file.write_text(NODE.replace('"key.pem"', '"/somewhere/key.pem"'))
    assert load_node_config(file).key_file == "/somewhere/key.pem"


def test_what_a_server_does_not_keep_reaches_the_bucket(file):
    options = "lists_in_order = false\njoins_once = false\n"
    bucket = 'kind = "s3"\nendpoint = "http://[::1]:8333"\nbucket = "run"\n'
    proxy = 'proxy = "http://[::1]:3128"\n'
    file.write_text(proxy + NODE.replace('kind = "directory"\n', bucket + options))
    place = run_bucket(load_node_config(file))
    assert (place.lists_in_order, place.joins_once) == (False, False)
    assert place.proxy == "http://[::1]:3128"
    file.write_text(NODE.replace('kind = "directory"\n', bucket))
    place = run_bucket(load_node_config(file))
    assert place.lists_in_order
    assert place.joins_once
    assert place.proxy == ""


def test_the_demos_plan_is_read_with_its_texts_found():
    plan = load_run_plan(ROOT / "configs" / "demo.toml")
    assert all(Path(text).is_file() for text in plan.data.texts)
    assert plan.codec.k_per_chunk == 64
    assert plan.admission.mode == "open"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("state_dir =", "stat_dir =", "stat_dir"),
        ('"state"', "3", "state_dir"),
        ('"directory"', '"tape"', "store.kind"),
        ("[store]", "num_threads = 0\n[store]", "num_threads"),
        ("[store]", "num_threads = 1.0\n[store]", "num_threads"),
        ("[store]", 'device = "tpu"\n[store]', "device"),
        ("[store]", "clock_offset_s = 1e9\n[store]", "clock_offset_s"),
        ("[store]", "clock_offset_s = nan\n[store]", "clock_offset_s"),
        ("[store]", "[stores]", "stores"),
        ("[store]", 'proxy = "proxy:3128"\n[store]', "proxy"),
        ("[store]", 'proxy = "https://proxy.example:3128"\n[store]', "proxy"),
        ("[store]", "[store]\njoins_once = 1", "store.joins_once"),
        ("[store]", "[payloads]\nlists_in_order = 0\n[store]", "payloads.lists_in_order"),
    ],
)
def test_a_wrong_value_of_a_node_is_named(file, old, new, field):
    assert refused(load_node_config, file, NODE.replace(old, new)).field == field


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("num_rounds = 20", "", "run.num_rounds"),
        ("num_rounds = 20", "num_rounds = 0", "run.num_rounds"),
        ("num_rounds = 20", "num_round = 20", "run.num_round"),
        ("num_rounds = 20", 'num_rounds = "20"', "run.num_rounds"),
        ("learning_rate = 4e-3", "learning_rate = -1", "training.learning_rate"),
        ("learning_rate = 4e-3", f"learning_rate = 1{'0' * 400}", "training.learning_rate"),
        ("alpha = 1.0", "alpha = inf", "outer.alpha"),
        ("value_bits = 2", "value_bits = 3", "codec.value_bits"),
        ("vocab_size = 2048", "vocab_size = 100", "data.vocab_size"),
        ("num_peers = 4", "num_peers = 256", "swarm.num_peers"),
        ('texts = ["demo/kjv.txt.xz"]', 'texts = "demo"', "data.texts"),
        ("hidden_size = 128", "hidden_size = [1]", "model.settings.hidden_size"),
        ("hidden_size = 128", "hidden_size = 9007199254740992", "model.settings.hidden_size"),
        ("[training]", "[trainings]", "trainings"),
    ],
)
def test_a_wrong_value_of_a_plan_is_named(file, old, new, field):
    assert old in PLAN
    assert refused(load_run_plan, file, PLAN.replace(old, new, 1)).field == field


@pytest.mark.parametrize("load", [load_node_config, load_run_plan])
@pytest.mark.parametrize(
    "text", ["a = ", "[", f"a = {'9' * 5000}", "a = " + "[" * 5000, "a = 1\na = 2"]
)
def test_what_is_no_toml_is_one_line(load, file, text):
    assert refused(load, file, text).field == "the whole file"


@pytest.mark.parametrize("load", [load_node_config, load_run_plan])
def test_a_file_that_cannot_be_read_is_one_line(load, tmp_path):
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert caught.value.field == "the file"
    (tmp_path / "latin.toml").write_bytes(b'a = "\xe9"')
    with pytest.raises(ConfigError):
        load(tmp_path / "latin.toml")


@pytest.mark.parametrize("cls", [NodeConfig, RunPlan])
def test_an_unknown_key_lists_the_known_ones(cls, file):
    load = load_node_config if cls is NodeConfig else load_run_plan
    error = refused(load, file, "strange = 1\n" + (NODE if cls is NodeConfig else PLAN))
    for field in fields(cls):
        assert field.name in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "ignore")))
def test_any_bytes_are_read_or_refused_with_one_error(file, raw):
    file.write_bytes(raw)
    for load in (load_node_config, load_run_plan):
        with pytest.raises(ConfigError):
            load(file)
