"""OpenStack Swift's S3 API on loopback: a store that really checks signatures, digests and clocks.

Four of Swift's servers (proxy, account, container, and an object server that keeps objects in memory) run in
one child process. `swift` need not be installed beside the tests: `PROMPTMILL_SWIFT_PYTHON` may name another
interpreter that has it. Run as a script, this file is that child.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCESS_KEY = "test:tester"
SECRET_KEY = "testing"

_SWIFT_CONF = """\
[swift-hash]
swift_hash_path_suffix = test
swift_hash_path_prefix = test
[storage-policy:0]
name = only
default = yes
"""

_STORAGE_CONF = """\
[DEFAULT]
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
disable_fallocate = true
log_level = ERROR
[pipeline:main]
pipeline = server
[app:server]
use = egg:swift#{app}
"""

_PROXY_CONF = """\
[DEFAULT]
swift_dir = {folder}
log_level = ERROR
[pipeline:main]
pipeline = catch_errors gatekeeper s3api tempauth copy slo proxy-server
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""


def interpreter() -> str | None:
    """The Python that can run Swift, if there is one."""
    named = os.environ.get("PROMPTMILL_SWIFT_PYTHON")
    if named:
        return named
    return sys.executable if importlib.util.find_spec("swift") else None


@contextlib.contextmanager
def running_swift(folder: Path) -> Iterator[str]:
    """Start Swift with its files in `folder`; gives the S3 endpoint's URL, and stops it at the end."""
    python = interpreter()
    if python is None:
        raise RuntimeError("swift is not installed")
    with (folder / "swift.log").open("wb") as log:
        child = subprocess.Popen(
            [python, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"Swift did not start: {(folder / 'swift.log').read_text()[-2000:]}")
        yield json.loads(line)["url"]
    finally:
        child.communicate()  # closes its standard input, which ends it


def _serve(folder: Path) -> None:
    """The child: all servers on one eventlet hub, until standard input ends."""
    import eventlet  # noqa: PLC0415 - only the child has it

    eventlet.monkey_patch()
    from eventlet import wsgi  # noqa: PLC0415 - after the patch
    from swift.common import utils  # noqa: PLC0415 - after the patch

    (folder / "swift.conf").write_text(_SWIFT_CONF)
    (folder / "devices" / "sda1").mkdir(parents=True)
    utils.set_swift_dir(str(folder))
    sockets = {
        kind: eventlet.listen(("127.0.0.1", 0)) for kind in ("account", "container", "object", "proxy")
    }
    for kind in ("account", "container", "object"):
        _write_ring(folder, kind, sockets[kind].getsockname()[1])
    from swift.common.wsgi import loadapp  # noqa: PLC0415 - reads swift.conf as it is imported

    quiet: Any = utils.NullLogger()
    for kind, socket in sockets.items():
        conf = folder / f"{kind}.conf"
        app = "mem_object" if kind == "object" else kind
        conf.write_text((_PROXY_CONF if kind == "proxy" else _STORAGE_CONF).format(folder=folder, app=app))
        eventlet.spawn(wsgi.server, socket, loadapp(str(conf)), quiet)
    print(json.dumps({"url": f"http://127.0.0.1:{sockets['proxy'].getsockname()[1]}"}), flush=True)
    eventlet.tpool.execute(sys.stdin.buffer.read)


def _write_ring(folder: Path, kind: str, port: int) -> None:
    from swift.common.ring import RingBuilder  # noqa: PLC0415 - only the child has it

    builder = RingBuilder(part_power=1, replicas=1, min_part_hours=0)
    device = {
        "id": 0,
        "region": 1,
        "zone": 1,
        "weight": 1.0,
        "ip": "127.0.0.1",
        "port": port,
        "device": "sda1",
    }
    builder.add_dev({**device, "replication_ip": "127.0.0.1", "replication_port": port, "meta": ""})
    builder.rebalance()
    builder.get_ring().save(str(folder / f"{kind}.ring.gz"))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
