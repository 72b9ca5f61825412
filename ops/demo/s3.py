"""The demo's S3 API: moto's server on loopback, in memory, with one bucket. Prints its URL, then serves."""

from __future__ import annotations

import signal
import sys
from typing import Final

import boto3
from moto.server import ThreadedMotoServer

BUCKET: Final = "demo"


def main() -> None:
    """Serve until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    boto3.client("s3", endpoint_url=url).create_bucket(Bucket=BUCKET)
    sys.stdout.write(url + "\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main()
