"""What the repository says of itself is true: locks, example environment, Makefile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from common.options import settings_options

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "producer", "consumers", "ops")
LOCKS = ("requirements.lock", "requirements-demo.lock", "requirements-dev.lock")
EXAMPLE = dict(re.findall(r"^#?([A-Z][A-Z0-9_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETTINGS = settings_options(click.Command("run"))


def locked(name: str) -> list[tuple[Requirement, int]]:
    """The requirements of a lock file, each with its number of hashes."""
    entries = (ROOT / name).read_text().replace(" \\\n", " ").splitlines()
    return [(Requirement(entry.split(" --hash")[0]), entry.count("--hash=sha256:")) for entry in entries]


def versions(name: str) -> dict[str, set[str]]:
    pins: dict[str, set[str]] = {}
    for requirement, _ in locked(name):
        pins.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier))
    return pins


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_is_pinned_with_hashes_and_comes_from_the_index(name):
    for requirement, hashes in locked(name):
        assert re.fullmatch(r"==[^*]+", str(requirement.specifier)), requirement
        assert hashes > 0, requirement
        assert requirement.url is None, requirement
    assert not re.search(r"://|^-|^/|^\.", (ROOT / name).read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", LOCKS[:2])
def test_all_locks_fit_into_one_environment(name):
    largest = versions(LOCKS[2])
    for package, pins in versions(name).items():
        assert pins <= largest[package], package


@pytest.mark.parametrize(
    ("name", "asked_for"),
    [
        (LOCKS[0], PROJECT["project"]["dependencies"]),
        (LOCKS[1], PROJECT["project"]["optional-dependencies"]["demo"]),
        (LOCKS[2], [r for extra in PROJECT["project"]["optional-dependencies"].values() for r in extra]),
        (LOCKS[2], PROJECT["dependency-groups"]["dev"]),
    ],
)
def test_what_the_project_asks_for_is_locked_within_its_bounds(name, asked_for):
    pins = versions(name)
    for requirement in map(Requirement, asked_for):
        for pin in pins[canonicalize_name(requirement.name)]:
            assert requirement.specifier.contains(pin.removeprefix("=="), prereleases=True), requirement


def test_the_example_environment_lists_every_variable_that_the_code_reads():
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for name in re.findall(r"[\"']((?:PROMPTMILL|SGLANG|RQ)_[A-Z][A-Z_]*)[\"']", path.read_text()):
                # A tool's prefix names no variable of its own.
                assert name in EXAMPLE or name == "RQ_DASHBOARD", f"{path.name} reads {name}"


@pytest.mark.parametrize("parameter", SETTINGS.params, ids=lambda p: p.name)
def test_the_example_environment_shows_every_setting_with_its_default(parameter):
    shown = EXAMPLE[parameter.envvar]
    default = parameter.get_default(click.Context(SETTINGS))
    if parameter.multiple or default is None:
        assert shown == ""
    else:
        assert parameter.type.convert(shown, parameter, None) == default


def test_the_example_environment_holds_no_secret():
    secrets = {name for name in EXAMPLE if re.search(r"KEY|SECRET|PASSWORD", name)}
    assert secrets >= {"SGLANG_API_KEY", "AWS_SECRET_ACCESS_KEY"}
    assert {EXAMPLE[name] for name in secrets} == {""}


def test_common_imports_none_of_the_others_and_producer_and_consumers_not_each_other():
    forbidden = {
        "common": ("producer", "consumers", "ops"),
        "producer": ("consumers", "ops"),
        "consumers": ("producer", "ops"),
    }
    for package, others in forbidden.items():
        pattern = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(others)})\b", re.MULTILINE)
        for path in (ROOT / package).rglob("*.py"):
            assert not pattern.search(path.read_text()), path
