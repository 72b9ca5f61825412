"""Other queues and data set makers on the same jobs, each from its own package in a throwaway environment."""

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
    "datatrove": ["datatrove[io]", "aiofiles", "aiosqlite", "httpx"],
    "curator": ["bespokelabs-curator"],
    "distilabel": ["distilabel[openai]", "requests"],
    "speculators": ["aiohttp", "datasets", "openai", "tqdm", "transformers", "typer"],
}
"""What each peer is installed from, the newest that the package index has."""

BARE = {"speculators": ["speculators"]}
"""Installed without what they ask for: gigabytes (torch) that the part which is measured does not import."""


def python_of(peer: str) -> str:
    """The Python of a peer's own environment, made at its first use; `PROMPTMILL_BENCH_PEERS` says where."""
    home = os.environ.get("PROMPTMILL_BENCH_PEERS") or str(
        Path(tempfile.gettempdir()) / "promptmill-bench-peers"
    )
    folder = Path(home) / peer
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=False, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet"]
        subprocess.run([*install, "hiredis", *PACKAGES[peer]], check=True)
        if peer in BARE:
            subprocess.run([*install, "--no-deps", *BARE[peer]], check=True)
        (folder / "complete").touch()
    return str(python)
