"""S3 stores of several kinds, and a faulty way to each."""

from __future__ import annotations

import http.server
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.arena import Arena
from support.faulty_s3 import FaultyS3
from support.flow import Servers
from support.need import require
from support.s3 import S3Server
from support.swift_s3 import ACCESS_KEY, SECRET_KEY, interpreter, running_swift


@pytest.fixture
def arena(redis_url):
    """A real Redis driven step by step; what must be true of it is true at the end."""
    with Arena(redis_url) as arena:
        yield arena


@pytest.fixture(scope="session")
def swift(tmp_path_factory):
    require(interpreter(), "OpenStack Swift: pip install swift, or name a Python that has it")
    with running_swift(tmp_path_factory.mktemp("swift")) as url:
        yield url


@pytest.fixture(params=["moto", "swift"])
def s3_store(request, s3_server):
    """A store with a bucket, named by boto3's environment: one that is quick, one that checks all."""
    if request.param == "moto":
        return s3_server
    return request.getfixturevalue("swift_store")


@pytest.fixture
def swift_store(swift, s3_server, monkeypatch):
    """The one that checks all, with a bucket."""
    server = S3Server(swift, s3_server.bucket, ACCESS_KEY, SECRET_KEY)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.client().create_bucket(Bucket=server.bucket)
    return server


@pytest.fixture
def faulty_store(s3_store, monkeypatch):
    """A proxy before the store, named by boto3's environment in the store's place."""
    with FaultyS3(s3_store.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def faulty_swift(swift_store, monkeypatch):
    """The same before the store that checks all."""
    with FaultyS3(swift_store.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def faulty_s3(s3_server, monkeypatch):
    """The same before the quick store alone, where the store makes no difference."""
    with FaultyS3(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def self_signed(tmp_path):
    """The file of a certificate for 127.0.0.1 that is its own authority, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "both.pem").write_bytes(plain + certificate.public_bytes(pem))
    return tmp_path / "both.pem"


@pytest.fixture
def self_signed_server(self_signed):
    """The URL of an HTTPS server whose certificate is its own authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def instant_servers(tmp_path_factory):
    """Two simulated servers, processes of their own, that answer at once."""
    with Servers(tmp_path_factory.mktemp("instant"), "--instant", "--median-tokens", 60) as servers:
        yield servers


@pytest.fixture(scope="session")
def slow_servers(tmp_path_factory):
    """Two simulated servers of four slots each whose answers take about half a second."""
    speed = ("--median-tokens", 60, "--sigma", 0.2, "--tokens-per-s", 120, "--slots", 4)
    with Servers(tmp_path_factory.mktemp("slow"), *speed) as servers:
        yield servers


@pytest.fixture
def servers(instant_servers):
    """The quick ones, as new."""
    return instant_servers.as_new()


@pytest.fixture
def slow(slow_servers):
    """The slow ones, as new."""
    return slow_servers.as_new()
