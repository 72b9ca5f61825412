"""A program that starts, serves and dies as SGLang's server does, without a model.

First the port is closed, then `/health` answers 503, then 200. How long each takes and how it dies comes from
the environment, `FAKE_SGLANG_*`, below. `install` puts it where `python -m sglang.launch_server` finds it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OLD_FLAGS = ("--mamba-scheduler-strategy", "--cuda-graph-max-bs")
NEW_FLAGS = ("--mamba-radix-cache-strategy", "--cuda-graph-max-bs-decode")


def install(folder: Path, version: str) -> dict[str, str]:
    """Put a package `sglang` into a folder; returns the environment in which it is found."""
    (folder / "sglang").mkdir(parents=True)
    (folder / "sglang" / "__init__.py").touch()
    (folder / "sglang" / "launch_server.py").write_text("from fake_sglang import main\n\nmain()\n")
    info = folder / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    path = os.pathsep.join([str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "FAKE_SGLANG_VERSION": version, "FAKE_SGLANG_STARTS": str(folder / "starts")}


def starts(env: dict[str, str]) -> list[dict]:
    """Every start so far: when, with which arguments, on which GPU."""
    path = Path(env["FAKE_SGLANG_STARTS"])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def number(name: str, default: float = 0.0) -> float:
    return float(os.environ.get(f"FAKE_SGLANG_{name}", default))


def parse(argv: list[str]) -> argparse.Namespace:
    version = tuple(int(part) for part in os.environ["FAKE_SGLANG_VERSION"].split(".")[:3])
    parser = argparse.ArgumentParser(prog="launch_server.py", allow_abbrev=False)
    for flag in (
        *("model-path", "served-model-name", "host", "config", "reasoning-parser", "speculative-algorithm"),
        *(
            "speculative-num-steps",
            "speculative-eagle-topk",
            "speculative-num-draft-tokens",
            "schedule-policy",
        ),
        *("max-mamba-cache-size", "mamba-ssm-dtype", "context-length", "max-running-requests"),
        "mem-fraction-static",
    ):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--port", type=int)
    for flag in ("enable-metrics", "enable-cache-report", "disable-radix-cache"):
        parser.add_argument(f"--{flag}", action="store_true")
    for flag in OLD_FLAGS if version < (0, 5, 19) else ():
        parser.add_argument(flag)
    for flag in NEW_FLAGS if version >= (0, 5, 14) else ():
        parser.add_argument(flag)
    return parser.parse_args(argv)


def note_start(options: argparse.Namespace) -> int:
    """Write this start down; returns how many of this port there were before."""
    path = Path(os.environ["FAKE_SGLANG_STARTS"])
    before = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    start = {
        "port": options.port,
        "pid": os.getpid(),
        "at": time.monotonic(),
        "argv": sys.argv[1:],
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "key": Path(options.config).read_text() if options.config else None,
    }
    with path.open("a") as file:
        file.write(json.dumps(start) + "\n")
    return sum(old["port"] == options.port for old in before)


def scheduler() -> int:
    """A child of the server, as a real scheduler is; it does not end by itself."""
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    return subprocess.Popen([sys.executable, "-c", code]).pid


def die_with_traceback() -> None:
    print(
        "[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):", flush=True
    )
    print('  File "scheduler.py", line 1, in run', flush=True)
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 62.00 GiB.", flush=True)
    print(
        "[2026-01-01 00:00:00] Received sigquit from a child process. It usually means the child failed.",
        flush=True,
    )
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    options = parse(sys.argv[1:])
    earlier = note_start(options)
    print(f"server_args=ServerArgs(port={options.port}, api_key='{number('NOTHING')}')", flush=True)
    if os.environ.get("FAKE_SGLANG_SCHEDULER"):
        Path(os.environ["FAKE_SGLANG_SCHEDULER"]).write_text(str(scheduler()))
    if earlier < number("DIE_STARTS"):
        die_with_traceback()
    time.sleep(number("BIND_AFTER"))
    ready_at = time.monotonic() + number("READY_AFTER")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            health = 200 if time.monotonic() >= ready_at else 503
            body = json.dumps(
                {"object": "list", "data": [{"id": options.served_model_name, "object": "model"}]}
            )
            sends = {"/health": (health, b""), "/v1/models": (200, body.encode())}
            status, content = sends.get(self.path, (404, b'{"detail":"Not Found"}'))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True

    def leave(*_: object) -> None:
        if not number("IGNORE_SIGTERM"):
            print("leaving on SIGTERM", flush=True)
            threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, leave)
    if number("DIE_AFTER") and not earlier:
        threading.Timer(number("DIE_AFTER"), die_with_traceback).start()
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever(poll_interval=0.02)
    server.server_close()
    os._exit(0)


if __name__ == "__main__":
    main()
