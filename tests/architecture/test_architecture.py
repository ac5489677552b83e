"""What must not change by accident: names that people build on, sizes, doors, banned words."""

import ast
import importlib
import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest

from shoal.node.telemetry.names import EventName
from shoal.node.telemetry.round_report import RoundReport
from shoal.protocol.errors import MEANINGS, ErrorCode

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "shoal"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in MODULES]

MAX_LINES = 300
# Every one of these is one page that would be worse as two.
LONGER = {
    "shoal/node/doctor.py": "one list of checks",
    "shoal/node/gatherer.py": "the whole life of one round's gather, with its boundary",
    "shoal/node/network/client.py": "one side of one conversation with the network process",
    "shoal/node/network/libp2p.py": "the one door to hivemind",
    "shoal/node/network/messages.py": "all messages between a node and its network process",
    "shoal/node/network/p2p_store.py": "one store",
    "shoal/node/network/run_objects.py": "one store",
    "shoal/node/network/streams.py": "one stream protocol, both ends",
    "shoal/node/swarm_report.py": "a table, a picture and a summary of the same figures",
    "shoal/protocol/identity.py": "keys, their files and their text form",
    "shoal/protocol/manifest.py": "one manifest, one page: every field with its range",
    "shoal/protocol/record.py": "the rules of a record in their order",
    "shoal/protocol/round_machine.py": "one machine: states, events, actions, transitions",
    "shoal/storage/http.py": "one store",
    "shoal/storage/merged.py": "one store out of two",
    "shoal/storage/provider_check.py": "one list of checks",
}
MOST_LINES = 480

DOORS = {
    "transformers": "shoal/node/model.py",
    "tokenizers": "shoal/node/data/tokenizer.py",
    "matplotlib": "shoal/node/swarm_report.py",
    "cryptography": "shoal/protocol/identity.py",
    "dns": "shoal/node/network/dnsaddr.py",
    "numba": "shoal/compression/kernels/",
    "hivemind": "shoal/node/network/",
}
BANNED = re.compile(
    r"\bpickle\b|torch\.load|yaml\.load|(?<![\w.])eval\(|np\.load\b|(?<![\w.])numpy\.load\b"
)


def imported(path):
    """Top-level names of everything that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_there_are_modules():
    assert len(MODULES) > 80


def test_the_package_resolves_inside_the_repository():
    spec = importlib.util.find_spec("shoal")
    assert spec is not None
    assert spec.origin == str(PACKAGE / "__init__.py")
    for part in ("compression", "protocol", "storage", "node"):
        found = importlib.util.find_spec(f"shoal.{part}")
        assert found is not None
        assert found.origin == str(PACKAGE / part / "__init__.py")


def test_no_package_of_ours_stands_at_the_root():
    for part in ("compression", "protocol", "storage", "node"):
        assert not (ROOT / part).exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_module_is_one_page_or_says_why_not(name):
    num_lines = len((ROOT / name).read_text().splitlines())
    assert num_lines <= (MOST_LINES if name in LONGER else MAX_LINES)


def test_the_list_of_long_modules_is_of_this_repository():
    assert set(LONGER) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_says_what_it_is_for(name):
    assert ast.get_docstring(ast.parse((ROOT / name).read_text())), name


@pytest.mark.parametrize("library", DOORS)
def test_a_foreign_library_enters_through_its_one_door(library):
    users = [name for name, path in zip(NAMES, MODULES, strict=True) if library in imported(path)]
    assert users
    assert all(name.startswith(DOORS[library]) for name in users), users
    if DOORS[library].endswith(".py"):
        assert users == [DOORS[library]]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_that_runs_received_bytes_is_near(name):
    found = [m.group() for m in BANNED.finditer(_code_of(ROOT / name))]
    assert found == []
    assert not {"pickle", "shelve", "marshal", "dill", "joblib", "yaml"} & set(
        imported(ROOT / name)
    )


def _code_of(path):
    """The module without its docstrings, which may well name what it does not do."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                value.value = ""
    return ast.unparse(tree)


def test_the_search_for_banned_words_finds_them():
    for bad in ("import pickle", "torch.load(x)", "yaml.load(x)", "y = eval('1')", "np.load(x)"):
        assert BANNED.search(bad)
    assert not BANNED.search("self.model.eval()")


def test_names_of_events_are_frozen():
    assert {name.value for name in EventName} == {
        "node-started",
        "caught-up",
        "round-opened",
        "inner-step",
        "payload-staged",
        "payload-published",
        "payload-accepted",
        "payload-rejected",
        "record-rejected",
        "record-written",
        "round",
        "bandwidth",
        "warning",
        "node-stopped",
    }


def test_no_name_of_a_metric_is_lost():
    assert {field.name for field in fields(RoundReport)} >= {
        "round_id",
        "role",
        "state_hash",
        "void",
        "counted",
        "replayed",
        "num_counted",
        "num_accepted",
        "rejected",
        "round_s",
        "train_s",
        "stage_s",
        "upload_s",
        "wait_s",
        "apply_s",
        "exposed_communication_s",
        "communication_ratio",
        "gather_latency_s",
        "downloads",
        "uploaded_bytes",
        "downloaded_bytes",
        "payload_bytes",
        "dense_bytes",
        "inner_steps",
        "tokens",
        "first_loss",
        "mean_loss",
        "last_loss",
        "held_out_loss",
        "relative_squared_error",
        "mean_ratio",
        "pseudo_gradient_norm",
        "residual_norm",
        "update_norm",
        "agreement_ratio",
        "clip_weight_ratio",
    }


def test_no_code_is_lost_and_each_has_a_meaning():
    threats = {
        "E_ADDR_NOT_PUBLIC E_ALL_ZERO E_BODY_HASH E_BODY_LEN E_DHT_EXPIRY_FAR E_DUPLICATE",
        "E_EMPTY_CHUNK E_EQUIVOCATION E_FLAGS E_FORK E_GAP E_HOST_NOT_ALLOWED E_HTTP_ENCODING",
        "E_HTTP_REDIRECT E_INDEX_ORDER E_INDEX_RANGE E_JSON_DUPKEY E_JSON_NUMBER E_KEY_WEAK E_LEN",
        "E_MAGIC E_MANIFEST E_OBJECT_KEY E_PARENT E_PEER_UNKNOWN E_PREV E_QUORUM E_ROLLBACK",
        "E_ROUND_FUTURE E_ROUND_OLD E_RUN E_SCALE_NONFINITE E_SCALE_RANGE E_SCALE_SIGN",
        "E_SCALE_SUBNORMAL E_SIG E_SIGNER_REPEATED E_URL_EXTRA E_URL_SCHEME E_VERSION E_INTERNAL",
    }
    ours = (
        "E_CLOCK E_CONFIG E_JSON E_JSON_DEPTH E_KEY_IN_USE E_PADDING E_RECORD E_SCALE_ORDER E_STATE"
    )
    wanted = {code for line in (*threats, ours) for code in line.split()}
    assert wanted <= {code.value for code in ErrorCode}
    assert set(MEANINGS) == set(ErrorCode)
    assert all(code.name == code.value for code in ErrorCode)


def test_no_command_is_lost():
    typer_main = importlib.import_module("typer.main")
    group = typer_main.get_command(importlib.import_module("shoal.node.app").app)
    assert set(group.commands) >= {
        "swarm", "init", "join", "validate", "inspect", "data", "keygen", "doctor", "status",
    }  # fmt: skip
    assert set(group.commands["data"].commands) == {"prepare"}
