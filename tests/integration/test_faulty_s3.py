"""The faulty S3 proxy as a process, scripted over HTTP as the chaos runs do it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from support import faulty_s3
from support.wait import patient

from common.errors import StorageError
from common.storage.patience import Patience
from common.storage.s3_storage import S3Storage


@contextlib.contextmanager
def proxy_process(upstream):
    command = [sys.executable, faulty_s3.__file__, "--upstream", upstream, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
    assert process.returncode == 0


def ask(url, *, method="GET", body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data=data, method=method), timeout=patient(10)
    ) as answer:
        return json.load(answer)


def test_it_is_scripted_while_it_runs(s3_server, monkeypatch):
    with proxy_process(s3_server.endpoint) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        storage = S3Storage(s3_server.bucket, "run", patience=Patience(total_s=0))
        assert storage.create("part-0", b"data") is True
        ask(f"{url}/_faults", method="POST", body={"faults": [{"kind": "status", "status": 503}], "seed": 7})
        with pytest.raises(StorageError, match="503 SlowDown"):
            storage.read("part-0")
        faults = ask(f"{url}/_faults")["faults"]
        assert [(fault["kind"], fault["struck"]) for fault in faults] == [("status", 1)]
        ask(f"{url}/_faults", method="DELETE")
        assert storage.read("part-0") == b"data"
        seen = ask(f"{url}/_requests")["requests"]
        assert [(one["method"], one["fault"], one["status"]) for one in seen[-2:]] == [
            ("GET", "status", 503),
            ("GET", None, 200),
        ]


def test_a_script_that_makes_no_sense_is_refused(s3_server):
    with proxy_process(s3_server.endpoint) as url:
        with pytest.raises(urllib.error.HTTPError, match="400") as caught:
            ask(f"{url}/_faults", method="POST", body={"faults": [{"kind": "explode"}]})
        caught.value.close()
        assert ask(f"{url}/_faults") == {"faults": []}


def test_a_seeded_script_strikes_the_same_requests_again(s3_server):
    struck = []
    for _ in range(2):
        with faulty_s3.FaultyS3(s3_server.endpoint) as proxy:
            proxy.inject(faulty_s3.Fault(kind="status", status=418, probability=0.5))
            for _ in range(20):
                with contextlib.suppress(urllib.error.HTTPError):
                    urllib.request.urlopen(proxy.url, timeout=patient(10)).close()
            struck.append([seen.status for seen in proxy.requests])
    assert struck[0] == struck[1]
    assert set(struck[0]) == {200, 418}
