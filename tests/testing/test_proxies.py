"""The faulty proxy, before a server that answers each line with itself."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from interlock.errors import UsageError
from interlock.testing.proxies import FaultyProxy


class Echo(socketserver.StreamRequestHandler):
    """Answers, and notes what it was asked."""

    heard: list[bytes]

    def handle(self) -> None:
        """Serve one connection."""
        for line in self.rfile:
            self.heard.append(line)
            self.wfile.write(line)


@pytest.fixture
def heard() -> list[bytes]:
    return []


@pytest.fixture
def proxy(heard: list[bytes]) -> Iterator[FaultyProxy]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), type("Handler", (Echo,), {"heard": heard})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with FaultyProxy(f"redis://user:secret@127.0.0.1:{server.server_address[1]}/0") as made:
                yield made
        finally:
            server.shutdown()
            thread.join()


def connected(proxy: FaultyProxy) -> socket.socket:
    """A connection that has been served once."""
    port = int(proxy.url.rpartition(":")[2].partition("/")[0])
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    assert asked(client) == b"hello\n"
    return client


def asked(client: socket.socket) -> bytes:
    """The answer."""
    client.sendall(b"hello\n")
    return client.recv(100)


def test_it_passes_on_and_keeps_the_rest_of_the_url(proxy: FaultyProxy) -> None:
    assert proxy.url.startswith("redis://user:secret@127.0.0.1:")
    with connected(proxy):
        assert (proxy.accepted, proxy.open) == (1, 1)


def test_cut_and_reset(proxy: FaultyProxy) -> None:
    with connected(proxy) as client, connected(proxy) as other:
        assert proxy.cut() == 2
        assert client.recv(1) == other.recv(1) == b""
    with connected(proxy) as client:
        assert proxy.reset() >= 1
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert proxy.fired["cut"] == 2


def test_a_lost_reply_is_of_a_request_that_got_through(proxy: FaultyProxy, heard: list[bytes]) -> None:
    with connected(proxy) as client:
        proxy.lose_replies(1)
        with pytest.raises(ConnectionResetError):
            asked(client)
    assert heard == [b"hello\n"] * 2
    assert proxy.fired["lost reply"] == 1
    with connected(proxy) as client:
        assert asked(client) == b"hello\n"


def test_silence_holds_back_and_new_connections_are_served(proxy: FaultyProxy) -> None:
    with connected(proxy) as client:
        assert proxy.silence() == 1
        client.sendall(b"hello\n")
        with connected(proxy):
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert proxy.speak() == 2
            client.settimeout(10)
            assert client.recv(100) == b"hello\n"


def test_delay(proxy: FaultyProxy) -> None:
    with connected(proxy) as client:
        assert proxy.delay(0.05) == 1
        client.settimeout(0.02)
        with pytest.raises(TimeoutError):
            asked(client)
        client.settimeout(10)
        assert client.recv(100) == b"hello\n"
        proxy.delay(0)
    assert proxy.fired["delay"] == 1


def test_a_url_without_a_port_is_refused() -> None:
    with pytest.raises(UsageError, match="host and a port"):
        FaultyProxy("postgresql:///db")
