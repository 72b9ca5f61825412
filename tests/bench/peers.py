"""Other Python queues on the same jobs, each from its own package in a throwaway environment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

PACKAGES = {
    "dramatiq": ["dramatiq[redis]"],
    "taskiq": ["taskiq", "taskiq-redis"],
    "arq": ["arq"],
    "saq": ["saq[redis]", "typing-extensions"],
    "celery": ["celery[redis]"],
}
"""What each peer is installed from, the newest that the package index has."""


def python_of(peer: str) -> str:
    """The Python of a peer's own environment, made at its first use; `PROMPTMILL_BENCH_PEERS` says where."""
    home = os.environ.get("PROMPTMILL_BENCH_PEERS") or str(
        Path(tempfile.gettempdir()) / "promptmill-bench-peers"
    )
    folder = Path(home) / peer
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=False, clear=True)
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*install, "--disable-pip-version-check", "hiredis", *PACKAGES[peer]], check=True)
        (folder / "complete").touch()
    return str(python)
