"""What containers run beside promptmill's own commands: the health check and the choice of a server."""

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import CollectorRegistry

from common.metrics import serve
from ops import healthcheck


class Sick(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def sick():
    with HTTPServer(("127.0.0.1", 0), Sick) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_process_that_serves_its_metrics_is_healthy(monkeypatch):
    served = serve(CollectorRegistry(), "127.0.0.1:0")
    assert served
    address, stop = served
    monkeypatch.setenv("PROMPTMILL_METRICS_ADDRESS", f"0.0.0.0:{address.rpartition(':')[2]}")
    assert healthcheck.main([]) == 0
    stop()
    assert healthcheck.main([]) == 1


def test_a_server_that_says_no_is_not_healthy(sick, capsys):
    assert healthcheck.main([sick, "/health"]) == 1
    assert "HTTP 503" in capsys.readouterr().err
    assert healthcheck.main(["nonsense"]) == 2


def run(*argv, **environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG", "PROMPTMILL"))}
    command = [sys.executable, "-m", "ops.replica", *argv]
    return subprocess.run(command, env={**env, **environment}, capture_output=True, text=True, check=False)


def test_a_replica_becomes_its_command_with_its_own_server():
    show = (sys.executable, "-c", "import os; print(os.environ['SGLANG_URL'])")
    done = run(*show, SGLANG_URL="http://mine:1")
    assert done.stdout.strip() == "http://mine:1"
    # The host's own address, spelled with its last number left open, stands in for the container's name.
    network, _, number = socket.gethostbyname(socket.gethostname()).rpartition(".")
    done = run(
        *show, PROMPTMILL_FIRST_SERVER="http://servers:30000", PROMPTMILL_REPLICA_NAME=f"{network}.{{}}"
    )
    assert done.stdout.strip() == f"http://servers:{30000 + int(number) - 1}"


def test_without_a_command_or_a_server_it_says_what_is_needed():
    assert run().returncode == 1
    done = run("true")
    assert done.returncode == 2
    assert "set SGLANG_URL" in done.stderr
