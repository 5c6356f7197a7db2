"""The HTTP client of fdl: time-outs, proxies, certificates and redirects in one place.

All requests go through httpx2, the maintained continuation of httpx. Connections stay open between
requests, and several threads share them.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Self
from weakref import WeakSet

import httpx2

from fdl.fetch.options import Options

_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with which users name their own certificate authorities."""

_MOST_REDIRECTS = 10


class AddressError(Exception):
    """Nothing can be downloaded from an address; the text says why."""


class AuthorityError(AddressError):
    """The file of the user's certificate authorities is missing or holds none."""


class Client:
    """Opens connections and keeps them for later requests; usable by several threads at once.

    The variables for certificates are read from ``environ``, time-outs from ``options``. Proxies
    are those of the process's environment or of the system.
    """

    def __init__(self, environ: Mapping[str, str], options: Options) -> None:
        self._environ = environ
        self.options = options
        self._guard = threading.Lock()
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._hung_up = False
        self._client: httpx2.Client | None = None

    def close(self) -> None:
        """Close all kept connections."""
        if self._client is not None:
            self._client.close()

    def hang_up(self) -> None:
        """Abort all requests that are running, so that no thread waits for them any longer."""
        self._hung_up = True
        for connected in list(self._sockets):
            # The method of TLS sockets would remove the keys that another thread reads with.
            with suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Send a GET request and follow redirects; the caller reads the body.

        A user name and password in the address are sent too, but not to another host that a
        redirect names.

        Raises:
            AddressError: The address or the proxy cannot work, there are too many redirects, or one
                leads from https to http.
            httpx2.HTTPError: There is no answer.
        """
        try:
            address = httpx2.URL(url)
            if address.scheme not in ("http", "https") or not address.host:
                raise AddressError("it is not an http:// or https:// address")
            answer = self._ask(address, headers)
        except httpx2.TooManyRedirects:
            raise AddressError(f"there are more than {_MOST_REDIRECTS} redirects") from None
        # ValueError: such as a host name that IDNA refuses.
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, ValueError) as error:
            raise AddressError(str(error)) from None
        with closing(answer) as response:
            yield response

    def _ask(self, address: httpx2.URL, headers: Mapping[str, str]) -> httpx2.Response:
        client = self._opened()
        while True:
            watch = _Watch(self._sockets)
            request = client.build_request("GET", address, headers=dict(headers))
            request.extensions["trace"] = watch
            try:
                return client.send(request, stream=True)
            except (httpx2.RemoteProtocolError, httpx2.NetworkError):
                # The server had closed a kept connection. Each such failure uses one up, and a new
                # connection cannot fail this way.
                if self._hung_up or watch.connected:
                    raise

    def _opened(self) -> httpx2.Client:
        with self._guard:
            if self._client is None:
                options = self.options
                try:
                    self._client = httpx2.Client(
                        verify=_Authorities.of(self._environ),
                        timeout=httpx2.Timeout(
                            options.stall_timeout, connect=options.connect_timeout
                        ),
                        limits=httpx2.Limits(max_keepalive_connections=options.connections + 1),
                        follow_redirects=True,
                        max_redirects=_MOST_REDIRECTS,
                        event_hooks={"response": [_refuse_downgrade]},
                    )
                except ImportError:
                    raise AddressError(
                        "its proxy is a SOCKS proxy, which needs the package `socksio`"
                    ) from None
                except ValueError as error:
                    raise AddressError(f"its proxy cannot be used: {error}") from None
            return self._client


class _Watch:
    """Follows one request: whether it opened a connection, and which sockets it used.

    Attributes:
        connected: Whether a new connection was opened, or tried.
    """

    def __init__(self, sockets: WeakSet[socket.socket]) -> None:
        self._sockets = sockets
        self.connected = False

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        name = event.partition(".")[2]
        if name.startswith("connect_tcp"):
            self.connected = True
        if name in ("connect_tcp.complete", "start_tls.complete"):
            self._sockets.add(info["return_value"].get_extra_info("socket"))


def _refuse_downgrade(response: httpx2.Response) -> None:
    """Refuse a redirect that gives up encryption."""
    if response.url.scheme != "https" or not response.has_redirect_location:
        return
    target = response.url.join(response.headers["Location"])
    if target.scheme != "https":
        raise AddressError(f"a redirect leads from https to {target.scheme}://{target.host}")


class _Authorities(ssl.SSLContext):
    """The authorities named by the user's variables, else those of the system and of certifi.

    They are loaded by the first encrypted connection: that takes longer than to open one.
    """

    _guard = threading.Lock()
    _named: str | None = None
    _loaded = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The authorities for these variables."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        if sys.version_info >= (3, 13):
            # As ssl.create_default_context has it, which would load authorities now.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
        context._named = next(filter(None, map(environ.get, _BUNDLES)), None)
        return context

    def wrap_socket(self, *args: Any, **named: Any) -> ssl.SSLSocket:
        """Encrypt a connection.

        Raises:
            AuthorityError: The authorities cannot be read.
            OSError: The other end has no certificate of theirs.
        """
        with self._guard:
            if not self._loaded:
                self._load()
                self._loaded = True
        return super().wrap_socket(*args, **named)

    def _load(self) -> None:
        if self._named is None:
            import certifi

            self.load_default_certs()
            # Some builds of Python do not know the authorities of the system.
            self.load_verify_locations(certifi.where())
            return
        try:
            self.load_verify_locations(self._named)
        except OSError as error:
            empty = isinstance(error, ssl.SSLError)
            raise AuthorityError(
                f"the certificate authorities of {self._named} cannot be read: "
                + ("there is no certificate in it" if empty else str(error.strerror))
            ) from None
