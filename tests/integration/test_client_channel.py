"""The channel against the session that it goes past: the same requests, the same answers, the same errors.

Whatever of aiohttp the channel takes for granted is used here on real sockets, so that an update that changes
it fails these tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
import zlib

import aiohttp
import pytest
from support.both_loops import on_both_loops
from support.wait import patient
from support.wire_stub import Asked, Wire, WireStub, reply

from consumers.client.channel import Channel
from consumers.client.transport import broke_without_a_byte, failure_of, open_session

BODY = b'{"ask": 1}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: "

TALKS = {
    "whole": reply(200, {"a": 1}),
    "empty": reply(200, b""),
    "error": reply(503, {"error": "full"}, Retry_After="4"),
    "no content": b"HTTP/1.1 204 None\r\n\r\n",
    "redirect": reply(307, b"", Location="http://127.0.0.1:1/"),
    "cookie": reply(200, b"x", Set_Cookie="a=b"),
    "chunked": CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "gzip": reply(200, gzip.compress(b"text " * 1000), Content_Encoding="gzip"),
    "deflate": reply(200, zlib.compress(b"text " * 1000), Content_Encoding="deflate"),
    "to the end": b"HTTP/1.1 200 OK\r\n\r\nall until the end",
    "of HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "closing": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
    "hints first": b"HTTP/1.1 103 Early\r\n\r\n" + reply(200, b"late"),
    "large": reply(200, b"0123456789" * 200_000),
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "half a body": LENGTH + b"9\r\n\r\nabc",
    "half a chunk": CHUNKED + b"9\r\nabc",
    "no gzip": reply(200, b"plain", Content_Encoding="gzip"),
    "no HTTP": b"hello\r\n\r\n",
    "no status": b"HTTP/1.1 abc\r\n\r\n",
    "no length": LENGTH + b"x\r\n\r\n",
    "a long head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    "more than told": reply(200, b"ok") + b"HTTP/1.1 200 OK\r\n",
}


@contextlib.asynccontextmanager
async def served(serve):
    """The URL of a server that does with a connection what it likes."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def by_session(session: aiohttp.ClientSession, url: str):
    async with session.post(url, data=BODY, allow_redirects=False) as response:
        return response.status, list(response.headers.items()), await response.read()


async def by_channel(session: aiohttp.ClientSession, url: str):
    found = await (await Channel.open(session, url)).post(BODY)
    return found.status, list(found.headers.items()), found.body


async def outcome(way, session, url):
    try:
        return await way(session, url)
    except aiohttp.ClientError as error:
        return type(error), failure_of(error).kind, broke_without_a_byte(error)


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
@on_both_loops
async def test_an_answer_is_to_it_what_it_is_to_the_session(talk):
    async def then_close(asked: Asked, wire: Wire) -> None:
        await wire.send(talk)
        wire.close()

    async with WireStub(then_close) as stub:
        found = []
        for way in (by_session, by_channel):
            async with open_session(api_key=None, keep=True) as session:
                found.append(await outcome(way, session, stub.url))
    assert found[1] == found[0]


@pytest.mark.parametrize("talk", [talk for talk in TALKS.values() if b"HTTP" in talk], ids=lambda _: "")
@on_both_loops
async def test_a_connection_is_kept_when_the_session_would_keep_it(talk):
    async def stay(asked: Asked, wire: Wire) -> None:
        await wire.send(talk)

    kept = []
    for way in (by_session, by_channel):
        async with WireStub(stay) as stub, open_session(api_key=None, keep=True) as session:
            for _ in range(2):
                await asyncio.wait({asyncio.ensure_future(outcome(way, session, stub.url))}, timeout=0.1)
            kept.append(stub.connections)
    assert kept[1] == kept[0]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(("own", "key"), [("", None), ("me:s%20cret@", None), ("", "a-key")])
@on_both_loops
async def test_a_request_is_the_one_that_the_session_sends(keep, own, key):
    async def answer(asked: Asked, wire: Wire) -> bytes:
        return reply(200, b"ok")

    async with WireStub(answer) as stub, open_session(api_key=key, keep=keep) as session:
        url = f"{stub.url.replace('//', '//' + own)}/a path/v1?x=1"
        await by_session(session, url)
        await by_channel(session, url)
    first, second = stub.asked
    assert (second.method, second.path, second.body) == (first.method, first.path, first.body)
    assert second.headers == first.headers
    assert "connection" in first.headers or keep


@on_both_loops
async def test_nothing_of_the_address_is_told_but_the_host():
    async def talk(asked: Asked, wire: Wire) -> bytes:
        return b"no HTTP\r\n\r\n"

    async with WireStub(talk) as stub, open_session(api_key=None, keep=True) as session:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await by_channel(session, stub.url.replace("//", "//me:secret@"))
    assert "secret" not in f"{caught.value!r} {caught.value}"


@on_both_loops
async def test_cancelling_closes_the_connection():
    came, gone = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        came.set()
        await reader.read()
        gone.set()
        writer.close()

    async with served(hold) as url, open_session(api_key=None, keep=True) as session:
        channel = await Channel.open(session, url)
        task = asyncio.ensure_future(channel.post(BODY))
        await came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), patient(5.0))


@on_both_loops
async def test_a_body_that_was_not_read_is_not_taken_for_the_next_request():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(413, {"error": "too large"}))
        # It reads no further, and closes only when all is over.
        await over.wait()
        writer.transport.abort()

    connections, over = 0, asyncio.Event()
    async with served(refuse) as url, open_session(api_key=None, keep=True) as session:
        channel = await Channel.open(session, url)
        for _ in range(2):
            found = await asyncio.wait_for(channel.post(b"x" * 50_000_000), patient(4.0))
            assert found.status == 413
        over.set()
    assert connections == 2


@on_both_loops
async def test_a_host_that_does_not_answer_the_connection_in_time():
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=0.001)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        # 192.0.2.0/24 is nobody's: packets there are dropped, or refused by a router.
        with pytest.raises((aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError)):
            await by_channel(session, "http://192.0.2.1:9")


@on_both_loops
async def test_a_refused_connection_is_the_error_it_is_to_the_session():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with open_session(api_key=None, keep=True) as session:
            found = [await outcome(way, session, url) for way in (by_session, by_channel)]
    assert found[1] == found[0]
    assert issubclass(found[1][0], aiohttp.ClientConnectorError)


@on_both_loops
async def test_a_connection_that_was_closed_meanwhile_is_not_used_again():
    async def then_close(asked: Asked, wire: Wire) -> None:
        await wire.send(reply(200, b"ok"))
        wire.close()

    async with WireStub(then_close) as stub, open_session(api_key=None, keep=True) as session:
        channel = await Channel.open(session, stub.url)
        for _ in range(3):
            assert (await channel.post(BODY)).body == b"ok"
            await asyncio.sleep(0.05)
        assert stub.connections == 3


@on_both_loops
async def test_every_way_that_a_request_ends_gives_its_connection_back():
    async def in_turn(asked: Asked, wire: Wire) -> None:
        turn = len(stub.asked) % 4
        if turn == 0:
            await asyncio.sleep(3600)
        await wire.send((reply(200, b"ok"), b"no HTTP\r\n\r\n", LENGTH + b"9\r\n\r\nabc")[turn - 1])
        wire.close()

    connector = aiohttp.TCPConnector(limit=1)
    async with WireStub(in_turn) as stub, aiohttp.ClientSession(connector=connector) as session:
        channel = await Channel.open(session, stub.url)
        for _ in range(9):
            # With one place, a connection that was not given back leaves none for the next request.
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                await asyncio.wait_for(channel.post(BODY), 0.5)
        assert len(stub.asked) == 9


@on_both_loops
async def test_small_requests_are_not_held_back_by_the_kernel():
    async def answer(asked: Asked, wire: Wire) -> bytes:
        return reply(200, b"ok")

    made = []

    def open_socket(address):
        made.append(socket.socket(*address[:3]))
        return made[-1]

    connector = aiohttp.TCPConnector(socket_factory=open_socket)
    async with WireStub(answer) as stub, aiohttp.ClientSession(connector=connector) as session:
        await by_channel(session, stub.url)
        assert made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@on_both_loops
async def test_an_address_of_ipv6():
    heads = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(BODY))
        writer.write(reply(200, b"ok", Connection="close"))
        writer.close()

    try:
        server = await asyncio.start_server(answer, "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    url = f"http://[::1]:{server.sockets[0].getsockname()[1]}/v1"
    async with server, open_session(api_key=None, keep=True) as session:
        await by_session(session, url)
        assert (await by_channel(session, url))[2] == b"ok"
    assert sorted(heads[1].split(b"\r\n")) == sorted(heads[0].split(b"\r\n"))


@on_both_loops
async def test_over_tls(self_signed):
    async def answer(asked: Asked, wire: Wire) -> bytes:
        return reply(200, b"secretly")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed)
    trusting = ssl.create_default_context(cafile=self_signed)
    trusting.check_hostname = False
    async with WireStub(answer, tls=context) as stub:
        connector = aiohttp.TCPConnector(ssl=trusting)
        async with aiohttp.ClientSession(connector=connector) as session:
            channel = await Channel.open(session, stub.url)
            assert [(await channel.post(BODY)).body for _ in range(3)] == [b"secretly"] * 3
        assert stub.connections == 1
        async with open_session(api_key=None, keep=True) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await by_channel(session, stub.url)
