"""The embedded Redis as a real process: quick, durable, private, alone on its folder, never left behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import redis
from support.need import require
from support.wait import patient, wait_for

from common.store.connection import RedisUnavailableError, client_from_url, redis_facts
from ops import embedded
from ops.embedded import EmbeddedRedis, EmbeddedRedisError, FolderInUseError, running_url


@pytest.fixture
def server(tmp_path):
    with EmbeddedRedis(tmp_path / "data") as started:
        yield started


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def parent(tmp_path):
    """A process of its own that started a server in `tmp_path`, and has said so."""
    with Parent(tmp_path) as started:
        yield started


class Parent:
    """Starts a server, prints its pid and URL, and does `then`; on Ctrl-C prints whether the server lives."""

    SCRIPT = textwrap.dedent("""
        import os, sys, time
        from ops.embedded import EmbeddedRedis
        server = EmbeddedRedis(sys.argv[1])
        try:
            url = server.start()
            print(server.pid, url, flush=True)
            exec(sys.argv[2])
            time.sleep(60)
        except KeyboardInterrupt:
            print(server.alive)
            server.stop()
    """)

    def __init__(self, folder, then=""):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT, folder, then],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        pid, self.url = self.line().split()
        self.server_pid = int(pid)
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdout.close()

    def line(self):
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()


def test_starts_within_two_seconds_and_answers(tmp_path):
    begin = time.monotonic()
    with EmbeddedRedis(tmp_path) as server:
        assert time.monotonic() - begin < patient(2.0)
        assert server.alive
        with connect(server.url) as client:
            assert client.ping()
    assert not server.alive


def test_is_set_up_to_lose_nothing(server):
    with connect(server.url) as client:
        settings = client.config_get("*")
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "everysec"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["save"] == ""
    assert settings["hash-max-listpack-value"] == "4096"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux tells")
def test_small_memory_is_kept_for_the_next_script_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    def tunables(folder):
        with EmbeddedRedis(folder) as server:
            return Path(f"/proc/{server.pid}/environ").read_bytes()

    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert b"glibc.malloc.tcache_count=8192" in tunables(tmp_path / "ours")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=9")
    assert b"glibc.malloc.tcache_count=8192" not in tunables(tmp_path / "theirs")


def test_data_survives_a_kill_at_the_same_url(server):
    url, first = server.url, server.pid
    with connect(url) as client:
        client.rpush("jobs", *range(1000))
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not server.alive, "the death is seen")
        assert server.pid is None
        assert server.start() == url
        assert server.pid != first
        assert client.lrange("jobs", 0, -1) == [str(n).encode() for n in range(1000)]


def test_data_survives_a_stop_and_another_object(tmp_path):
    with EmbeddedRedis(tmp_path) as server, connect(server.url) as client:
        client.set("kept", "yes")
        old = server.url
    with EmbeddedRedis(tmp_path) as server, connect(server.url) as client:
        assert client.get("kept") == b"yes"
        assert server.url != old, "a client left over from before must not reach the new server"


def test_a_cut_tail_costs_the_last_write_only(tmp_path):
    with EmbeddedRedis(tmp_path) as server, connect(server.url) as client:
        client.set("first", "1")
        client.set("last", "x" * 100)
    tail = max((tmp_path / "appendonlydir").glob("*.incr.aof"))
    os.truncate(tail, tail.stat().st_size - 50)
    with EmbeddedRedis(tmp_path) as server, connect(server.url) as client:
        assert client.get("first") == b"1"
        assert client.get("last") is None


def test_damaged_data_is_reported_with_the_log(tmp_path):
    with EmbeddedRedis(tmp_path) as server, connect(server.url) as client:
        for n in range(100):
            client.set(f"key-{n}", "value")
    data = max((tmp_path / "appendonlydir").glob("*.incr.aof"))
    content = bytearray(data.read_bytes())
    content[1000:1100] = b"?" * 100
    data.write_bytes(content)
    with pytest.raises(EmbeddedRedisError, match=r"(?s)move .* away.*Bad file format"):
        EmbeddedRedis(tmp_path).start()
    assert running_url(tmp_path) is None


def test_a_large_file_is_loaded_before_start_returns(server):
    with connect(server.url) as client:
        pipe = client.pipeline(transaction=False)
        for n in range(100_000):
            pipe.set(f"key-{n}", "x" * 100)
        pipe.execute()
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: not server.alive, "the death is seen")
        server.start()
        assert client.dbsize() == 100_000


def test_no_orphan_when_the_parent_is_killed(parent, tmp_path):
    with connect(parent.url) as client:
        assert client.ping()
    parent.kill()
    wait_for(lambda: gone(parent.server_pid), "the server ended with its parent", timeout=3.0)
    wait_for(lambda: running_url(tmp_path) is None, "the folder is free")


def test_no_orphan_when_a_forked_sibling_keeps_the_pipe(tmp_path):
    with Parent(tmp_path, "fork = os.fork(); fork and print(fork, flush=True)") as parent:
        sibling = int(parent.line())
        parent.kill()
        try:
            wait_for(lambda: gone(parent.server_pid), "the server ended with its parent", timeout=3.0)
            assert not gone(sibling)
        finally:
            os.kill(sibling, signal.SIGKILL)


def test_no_orphan_when_the_guard_is_killed(server):
    require(sys.platform == "linux", "only Linux ends a process with its parent")
    pid = server.pid
    guard = psutil.Process(pid).parent()
    assert guard.pid != os.getpid()
    guard.kill()
    wait_for(lambda: gone(pid), "the server ended with its guard", timeout=3.0)
    wait_for(lambda: not server.alive, "the death is seen")
    server.start()


def test_a_parent_killed_and_started_again_goes_on_at_once(parent, tmp_path):
    with connect(parent.url) as client:
        client.set("kept", "yes")
    parent.kill()
    with EmbeddedRedis(tmp_path) as server, connect(server.url) as client:
        assert client.get("kept") == b"yes"


def test_a_folder_in_use_is_refused_and_its_server_can_be_found(server, monkeypatch):
    monkeypatch.setattr(embedded, "LOCK_TIMEOUT", 0.1)
    assert running_url(server.folder) == server.url
    with pytest.raises(FolderInUseError, match="in use by another embedded Redis"):
        EmbeddedRedis(server.folder).start()
    with connect(running_url(server.folder)) as client:
        assert client.ping()
    server.stop()
    assert running_url(server.folder) is None


def test_ctrl_c_in_the_terminal_does_not_reach_it(parent):
    os.killpg(parent.process.pid, signal.SIGINT)
    assert parent.line() == "True"
    assert parent.process.wait() == 0
    assert gone(parent.server_pid)


def test_listens_on_loopback_only(server):
    listening = [c for c in psutil.Process(server.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [c.laddr.ip for c in listening] == ["127.0.0.1"]


def test_the_password_is_asked_for_and_stands_nowhere_but_in_private_files(server):
    password = server.url.split(":")[2].split("@")[0]
    assert len(password) >= 24
    port = int(server.url.rsplit(":", 1)[1].split("/")[0])
    with redis.Redis(port=port, retry=None) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    for process in psutil.process_iter(["cmdline"]):
        assert password not in " ".join(process.info["cmdline"] or [])
    assert password not in server.log_tail(1000)
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    for path in server.folder.rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
            if password.encode() in path.read_bytes():
                assert path.name in {"valkey.conf", "url"}


def test_a_wrong_password_is_called_one(server):
    password = server.url.split(":")[2].split("@")[0]
    with pytest.raises(RedisUnavailableError, match=r"refused the log-in.*RQ_REDIS_URL") as caught:
        redis_facts(client_from_url(server.url.replace(password, "canary-secret")))
    assert "canary" not in str(caught.value)


def test_a_taken_port_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedRedisError, match=f"127.0.0.1:{port}: the port is taken"):
            EmbeddedRedis(tmp_path, port).start()


def test_a_chosen_port_that_is_taken_meanwhile_is_chosen_again(tmp_path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        choices = [embedded._free_port(), taken.getsockname()[1]]
        monkeypatch.setattr(embedded, "_free_port", choices.pop)
        with EmbeddedRedis(tmp_path) as server:
            assert server.alive
        assert choices == []


def test_a_given_port_is_used(tmp_path):
    port = embedded._free_port()
    with EmbeddedRedis(tmp_path, port) as server:
        assert f":{port}/" in server.url


def test_any_folder_name_will_do(tmp_path):
    with EmbeddedRedis(tmp_path / 'it\'s a "folder" — 数据 # 1') as server, connect(server.url) as client:
        assert client.set("a", "b")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedRedisError, match=r"cannot use the folder .*file/data: Not a directory"):
        EmbeddedRedis(tmp_path / "file" / "data").start()


def test_no_url_before_the_first_start_and_stop_is_harmless(tmp_path):
    server = EmbeddedRedis(tmp_path)
    with pytest.raises(EmbeddedRedisError, match="has not been started"):
        _ = server.url
    server.stop()
    assert server.log_tail() == ""
    assert not server.alive
