"""The images and the compose file: what can be known of them without an engine."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped]  # comes with transformers; our own file, in a test only

from shoal.node.app import app
from shoal.node.config import load_node_config, load_run_plan

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE_TEXT = (DOCKER / "compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
FILES = sorted(path for path in DOCKER.iterdir() if path.is_file() and path.name != ".env")
TARGETS = ("cpu", "cuda")
NODES = ("validator", "peer-0", "peer-1", "peer-2", "peer-3")
# What the image brings besides shoal.
PROGRAMS = {"weed", "sh", "python"}
IN_IMAGE = "/opt/shoal/"


def instructions(text):
    """(WORD, rest) of every instruction, continued lines joined, comments left out."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(kept))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def stages():
    """By name: the base and the instructions of each stage."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    name = ""
    for word, rest in instructions(DOCKERFILE):
        if word == "FROM":
            base, _, name = rest.split()
            found[name] = (base, [])
        else:
            found[name][1].append((word, rest))
    return found


def of_stage(name, wanted):
    return [rest for word, rest in stages()[name][1] if word == wanted]


def copied(name):
    """Sources of the stage's COPY instructions."""
    return [source for rest in of_stage(name, "COPY") for source in rest.split()[:-1]]


def ignored(path):
    """Whether the builder never gets to see this path; the last rule that matches decides."""
    hidden = False
    for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        rule = line.strip()
        if not rule or rule.startswith("#"):
            continue
        shown, pattern = rule.startswith("!"), rule.lstrip("!")
        first = path.split("/")[0]
        if pattern == "*" or pattern in (path, first) or Path(path).match(pattern):
            hidden = not shown
    return hidden


def commands_of(text):
    """Every `shoal <words>` of a script, the words up to the first option or argument."""
    return re.findall(r"^\s*(?:exec )?shoal ([a-z]+)", text, re.MULTILINE)


def shoal_commands():
    return set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_the_targets_that_the_documents_name_exist():
    assert set(TARGETS) <= set(stages())
    for path in (DOCKER / "README.md", DOCKER / "Dockerfile"):
        assert set(re.findall(r"--target ([a-z]+)", path.read_text())) == set(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_copied_exists_and_reaches_the_builder(target):
    assert copied(target)
    for source in copied(target):
        assert (ROOT / source).exists(), source
        assert not ignored(source), source


def test_the_builder_gets_no_secret_and_nothing_heavy():
    for path in (".venv", ".git", "runs", "docker/.env", "tests"):
        assert ignored(path), path
    assert ".env" in (DOCKER / ".gitignore").read_text().split()


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_somebody_without_rights(target):
    # The last one counts; nothing but compiling the kernels comes after it.
    assert of_stage(target, "USER") == ["10001"]
    words = [word for word, _ in stages()[target][1]]
    after = stages()[target][1][words.index("USER") + 1 :]
    assert [rest for word, rest in after if word == "RUN"] == [
        "python -m shoal.compression.warm_up"
    ]
    assert "useradd --uid 10001 --create-home shoal\n" in (DOCKER / "install").read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_says_whether_it_is_healthy(target):
    (check,) = of_stage(target, "HEALTHCHECK")
    assert check.endswith('CMD ["python", "/opt/shoal/docker/healthcheck.py", "8760", "/healthz"]')
    for name in ("validator.toml", "peer.toml"):
        assert load_node_config(DOCKER / name).web.listen.endswith(":8760")


def test_both_targets_are_made_alike():
    (_, cpu), (_, cuda) = (stages()[target] for target in TARGETS)
    assert cpu == cuda


def test_torch_comes_first_and_may_get_more_arguments():
    install = (DOCKER / "install").read_text()
    for target in TARGETS:
        assert 'TORCH_ARGS=""' in of_stage(target, "ARG")
    assert install.index("TORCH_ARGS:-") < install.index("-r /tmp/wanted.txt")


def test_bases_are_plain_names_with_a_version():
    bases = [base for base, _ in stages().values() if base not in stages()]
    images = [service["image"] for service in SERVICES.values()]
    for image in {*bases, *images}:
        name, _, tag = image.partition(":")
        assert re.fullmatch(r"[a-z0-9-]+(/[a-z0-9-]+)?", name), image
        assert tag, image
        assert "latest" not in tag, image


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_names_a_registry_or_the_newest_of_anything(path):
    text = path.read_text()
    assert ":latest" not in text
    hosts = set(re.findall(r"https?://([^/:\s\"]+)", text))
    assert hosts <= {"s3", "validator"}, hosts


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_holds_a_secret(path):
    text = path.read_text()
    assert "PRIVATE KEY" not in text
    # Long hex is what keys of buckets look like.
    assert re.findall(r"\b[0-9a-fA-F]{20,}\b", text) == []
    for name, value in re.findall(r"(\w*(?:SECRET|ACCESS_KEY)\w*)\s*[:=]\s*(\S+)", text):
        assert value.startswith(("${", "%s")), name


def test_secrets_of_compose_come_from_outside_and_reach_only_who_needs_them():
    with_key = set()
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            assert re.fullmatch(r"\$\{SHOAL_S3_\w+:\?.+\}", value), f"{name}: {key}"
            with_key.add(name)
    assert with_key == {"s3", "setup", "validator"}


def test_compose_has_one_validator_and_four_peers_with_a_volume_each():
    assert set(SERVICES) == {"s3", "setup", *NODES}
    homes = {}
    for name in ("s3", *NODES):
        (home,) = [v.split(":")[0] for v in SERVICES[name]["volumes"] if v.endswith(":/data")]
        homes[name] = home
    assert len(set(homes.values())) == len(homes)
    for service in SERVICES.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DOCKER / source).is_file(), source
                assert volume.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]


def test_every_service_is_started_again_and_waits_for_what_it_needs():
    for name, service in SERVICES.items():
        assert service["restart"] in ("unless-stopped", "on-failure:10"), name
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES
            assert how["condition"] in ("service_healthy", "service_completed_successfully")
    assert all("setup" in SERVICES[name]["depends_on"] for name in NODES)


def test_pages_are_published_on_loopback_only():
    for service in SERVICES.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_every_command_of_compose_is_one():
    for name, service in SERVICES.items():
        program, *words = service["command"]
        if program == "shoal":
            assert words[0] in shoal_commands(), name
            assert words[0] == ("validate" if name == "validator" else "join")
        else:
            assert program in PROGRAMS, name
        for word in (*words, *service.get("healthcheck", {}).get("test", ())):
            if word.startswith(IN_IMAGE):
                path = word.removeprefix(IN_IMAGE)
                assert (ROOT / path).is_file(), word
                assert any(path == s or path.startswith(f"{s}/") for s in copied("cpu")), word
    assert SERVICES["setup"]["command"][2:3] == [f"{IN_IMAGE}configs/demo.toml"]
    load_run_plan(ROOT / "configs" / "demo.toml")


@pytest.mark.parametrize("name", ["setup", "entrypoint", "install"])
def test_scripts_stop_at_the_first_failure_and_name_real_commands(name):
    text = (DOCKER / name).read_text()
    assert text.startswith("#!/bin/sh\n")
    assert "\nset -eu\n" in text
    assert set(commands_of(text)) <= shoal_commands()
    shlex.split(text, comments=True)


def test_the_nodes_find_each_other():
    peer, validator = (load_node_config(DOCKER / f"{n}.toml") for n in ("peer", "validator"))
    assert (peer.store.endpoint, peer.store.bucket) == (
        validator.store.endpoint,
        validator.store.bucket,
    )
    assert peer.store.endpoint == "http://s3:8333"
    # What SeaweedFS does not keep.
    assert not peer.store.lists_in_order
    assert not validator.store.joins_once
    assert peer.store.url == "http://validator:8750"
    assert validator.serve.listen.endswith(":8750")
    assert not validator.store.url
    command = SERVICES["s3"]["command"]
    assert {"-s3.port=8333", f"-bucket={peer.store.bucket}"} <= set(command)
    # Paths of node.toml are inside the container.
    for config in (peer, validator):
        assert config.key_file == "/data/key.pem"
        assert config.state_dir == "/data/state"


def test_the_server_of_compose_is_in_the_image():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any("seaweedfs" in p for p in project["optional-dependencies"]["s3-server"])
    assert '["s3-server"]' in (DOCKER / "install").read_text()
