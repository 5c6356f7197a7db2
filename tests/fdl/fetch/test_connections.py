"""Connections: kept open, redirected, secured, and led through proxies."""

import contextlib
import shutil
import socket
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_string
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fdl.base.errors import FetchError
from tests.fdl.fetch.archives import QUICK, library, pack
from tests.fdl.fetch.server import Server

ARCHIVE = pack(library())
DIGEST = sha256(ARCHIVE).hexdigest()
IMPATIENT = replace(QUICK, attempts=1)


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(server, fetch):
    server.put("/a.zip", ARCHIVE, hangs_up=True)
    assert fetch(server.url("/a.zip"), options=IMPATIENT).sha256 == DIGEST


def test_a_redirect_is_followed(server, fetch):
    server.put("/a.zip", ARCHIVE)
    server.put("/latest.zip", b"", location=server.url("/a.zip"))
    assert fetch(server.url("/latest.zip")).sha256 == DIGEST
    server.put("/circle.zip", b"", location=server.url("/circle.zip"))
    with pytest.raises(FetchError, match="redirects"):
        fetch(server.url("/circle.zip"))


def test_a_proxy_is_used(server, fetch, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url(""))
    monkeypatch.setenv("no_proxy", "")
    server.put("http://example.invalid/a.zip", ARCHIVE)
    assert fetch("http://example.invalid/a.zip").sha256 == DIGEST


def test_a_password_is_neither_shown_nor_written_down(server, fetch):
    url = server.url("/a.zip").replace("http://", "http://user:hush@")
    server.put("/a.zip", ARCHIVE, cuts=[1_000_000])
    with pytest.raises(FetchError) as error:
        fetch(url, options=IMPATIENT)
    assert "hush" not in error.value.message
    assert "hush" not in fetch.journal.read_text()
    assert "hush" not in fetch(url).url


def test_a_proxy_is_told_who_asks(server, fetch, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url("").replace("http://", "http://me:p%40ss@"))
    monkeypatch.setenv("no_proxy", "")
    server.put("http://example.invalid/a%20b.zip", ARCHIVE)
    fetch("http://you:word@example.invalid/a b.zip")
    headers = server.requests[0].headers
    assert headers["Proxy-Authorization"] == f"Basic {b64encode(b'me:p@ss').decode()}"
    assert headers["Authorization"] == f"Basic {b64encode(b'you:word').decode()}"


def test_no_proxy_is_respected(server, fetch, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.put("/a.zip", ARCHIVE)
    assert fetch(server.url("/a.zip")).sha256 == DIGEST


def test_a_proxy_of_another_kind_is_refused(server, fetch, monkeypatch):
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1080")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(FetchError, match="a SOCKS proxy, which needs the package `socksio`"):
        fetch(server.url("/a.zip"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that nobody knows."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH")
    file = tmp_path_factory.mktemp("certificate") / "server.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    done = subprocess.run(
        [*argv, *names, "-keyout", "-", "-out", "-"], check=True, capture_output=True
    )
    file.write_bytes(done.stdout)
    return file


@pytest.fixture
def secure(certificate: Path) -> Iterator[Server]:
    with Server(certificate) as running:
        running.put("/a.zip", ARCHIVE)
        yield running


def test_a_certificate_nobody_knows_is_refused_at_once(secure, fetch):
    with pytest.raises(FetchError, match="certificate that cannot be verified") as error:
        fetch(secure.url("/a.zip"))
    assert "SSL_CERT_FILE=" in error.value.hint
    assert secure.requests == []


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_an_authority_of_ones_own_is_taken(secure, fetch, certificate, monkeypatch, variable):
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(certificate))
    assert fetch(secure.url("/a.zip")).sha256 == DIGEST


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file or directory"), ("no certificate", "there is no certificate in it")],
)
def test_authorities_that_cannot_be_read_are_named(
    secure, fetch, tmp_path, monkeypatch, content, reason
):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(FetchError) as error:
        fetch(secure.url("/a.zip"))
    assert error.value.message.endswith(
        f"the certificate authorities of {file} cannot be read: {reason}"
    )
    assert error.value.hint == "name a file of certificates: SSL_CERT_FILE=/path/to/ca.pem"


class Tunnel:
    """A proxy that only passes bytes on, as for `https`; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.asked.append(head.decode())
        host, _, port = head.split()[1].decode().partition(":")
        with client, socket.create_connection((host, int(port))) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            back.start()
            _pass_on(client, server)
            back.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def tunnel() -> Iterator[Tunnel]:
    running = Tunnel()
    yield running
    running.close()


def test_a_secure_connection_goes_through_a_tunnel(secure, fetch, certificate, tunnel, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("https_proxy", f"http://me:word@127.0.0.1:{tunnel.port}")
    monkeypatch.setenv("no_proxy", "")
    assert fetch(secure.url("/a.zip")).sha256 == DIGEST
    assert tunnel.asked[0].startswith(f"CONNECT {urlsplit(secure.url('')).netloc} ")
    said = message_from_string(tunnel.asked[0].partition("\r\n")[2])
    assert said["Proxy-Authorization"] == f"Basic {b64encode(b'me:word').decode()}"


def test_a_redirect_to_a_secure_server_takes_the_authority_of_ones_own(
    server, secure, fetch, certificate, monkeypatch
):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    server.put("/latest.zip", b"", location=secure.url("/a.zip"))
    assert fetch(server.url("/latest.zip")).sha256 == DIGEST


def test_credentials_do_not_follow_a_redirect_to_another_server(
    server, secure, fetch, certificate, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server.put("/latest.zip", b"", location=secure.url("/a.zip"))
    fetch(server.url("/latest.zip").replace("http://", "http://user:hush@"))
    assert "Authorization" in server.requests[0].headers
    assert not any("Authorization" in request.headers for request in secure.requests)


def test_a_redirect_that_gives_up_encryption_is_refused(
    server, secure, fetch, certificate, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server.put("/a.zip", ARCHIVE)
    secure.put("/a.zip", b"", location=server.url("/a.zip"))
    with pytest.raises(FetchError, match="a redirect leads from https to http://127"):
        fetch(secure.url("/a.zip"))
    assert not server.requests


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "USER:PASSWORD@HOST"), (403, "refuses this user"), (407, "proxy")]
)
def test_a_refusal_says_what_to_do(server, fetch, status, remedy):
    server.put("/a.zip", ARCHIVE, failures=[(status, {})])
    with pytest.raises(FetchError, match=str(status)) as error:
        fetch(server.url("/a.zip"))
    assert remedy in error.value.hint


def test_a_password_does_not_follow_a_redirect_to_another_host(server, fetch):
    server.put("/a.zip", ARCHIVE)
    with Server() as other:
        target = server.url("/a.zip").replace("127.0.0.1", "localhost")
        other.put("/a.zip", b"", location=target)
        fetch(other.url("/a.zip").replace("http://", "http://me:hush@"))
    assert server.requests
    assert all("Authorization" not in request.headers for request in server.requests)


def test_a_compressed_archive_is_named(server, fetch):
    server.put("/a.zip", ARCHIVE, failures=[(200, {"Content-Encoding": "gzip"})])
    with pytest.raises(FetchError, match="`Content-Encoding: gzip`") as error:
        fetch(server.url("/a.zip"))
    assert "--from FILE" in error.value.hint
