"""The wheel carries everything that the tree has: scripts, pages and type marks included."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("common", "producer", "consumers", "ops")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    done = subprocess.run([*build, "-w", target, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(target.glob("*.whl"))) as archive:
        yield archive


def test_every_file_of_the_packages_is_in_the_wheel(wheel):
    tree = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert tree - set(wheel.namelist()) == set()


def test_no_tests_and_one_licence_are_in_the_wheel(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.parametrize("target", PROJECT["scripts"].values(), ids=PROJECT["scripts"].keys())
def test_every_command_leads_somewhere(target):
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
