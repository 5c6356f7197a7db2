"""HTTP connections that stay open between requests, through proxies where the system says so."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationValueError, ProxySchemeUnknown
from urllib3.util import make_headers

from fdl.fetch.options import Options

_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with which people name certificate authorities of their own."""

_MOST_REDIRECTS = 10

# What fails is tried again by those who know what is there already.
_ONCE = urllib3.Retry(0, redirect=False, raise_on_status=False)


class ClosedMeanwhileError(ConnectionResetError):
    """A kept connection turned out to be closed by the other side; a new one may do."""


class AddressError(Exception):
    """An address that nothing can be fetched from; the text says why."""


class Connections:
    """Opens connections and keeps those that can be used again; for several threads at once.

    Args:
        environ: Where the variables for certificates are looked up.
        options: Time-outs.
    """

    def __init__(self, environ: Mapping[str, str], options: Options) -> None:
        self._environ = environ
        self._options = options
        self._guard = threading.Lock()
        # Scheme, proxy (empty for none) -> what keeps the connections.
        self._managers: dict[tuple[str, str], urllib3.PoolManager] = {}
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._hung_up = False

    def close(self) -> None:
        """Close what is kept open."""
        for manager in self._managers.values():
            manager.clear()

    def hang_up(self) -> None:
        """Break off whatever is under way, so that no thread waits for it any longer."""
        self._hung_up = True
        for connected in list(self._sockets):
            # The method of TLS sockets would drop the keys that another thread reads with.
            with suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Ask for something, following redirects; its body is read by the caller.

        Args:
            url: Its address; a name and a password in it are sent along.
            headers: What to send.

        Raises:
            AddressError: There is no use in asking, or no end of redirects.
            urllib3.exceptions.HTTPError: There is no answer.
        """
        for _ in range(_MOST_REDIRECTS):
            response = self._ask(url, headers)
            try:
                # Each may need another proxy, other authorities and other credentials.
                location = response.get_redirect_location()
                if not location:
                    yield response
                    return
                url = urljoin(url, location)
            finally:
                if response.length_remaining == 0:
                    response.drain_conn()
                response.close()
        raise AddressError(f"there are more than {_MOST_REDIRECTS} redirects")

    def _ask(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise AddressError("it is no http:// or https:// address")
            manager = self._manager(parts.scheme, _proxy(parts.scheme, parts.hostname))
            address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            while True:
                try:
                    return manager.request(
                        "GET",
                        address,
                        headers={**headers, **_credentials(url)},
                        preload_content=False,
                        decode_content=False,
                        redirect=False,
                        retries=_ONCE,
                    )
                except HTTPError as error:
                    # Each such failure uses up a kept connection, and a new one cannot fail so.
                    if self._hung_up or not _closed_meanwhile(error):
                        raise
        except (ValueError, LocationValueError) as error:
            raise AddressError(str(error)) from None

    def _manager(self, scheme: str, proxy: str) -> urllib3.PoolManager:
        with self._guard:
            if (scheme, proxy) not in self._managers:
                self._managers[scheme, proxy] = self._make(scheme, proxy)
            return self._managers[scheme, proxy]

    def _make(self, scheme: str, proxy: str) -> urllib3.PoolManager:
        options = self._options
        keywords: dict[str, Any] = {
            "maxsize": options.connections + 1,
            "timeout": urllib3.Timeout(connect=options.connect_timeout, read=options.stall_timeout),
        }
        # Reading all authorities takes as long as a few megabytes do.
        if "https" in (scheme, urlsplit(proxy).scheme):
            keywords["ssl_context"] = _certificates(self._environ)
        if proxy:
            try:
                manager: urllib3.PoolManager = urllib3.ProxyManager(
                    proxy, proxy_headers=_credentials(proxy, proxy=True), **keywords
                )
            except ProxySchemeUnknown:
                scheme = urlsplit(proxy).scheme
                raise AddressError(
                    f"its proxy is a {scheme}:// proxy, and only http:// and https:// are known"
                ) from None
        else:
            manager = urllib3.PoolManager(**keywords)
        manager.pool_classes_by_scheme = self._pools()
        return manager

    def _pools(self) -> dict[str, type[urllib3.HTTPConnectionPool]]:
        """Pools whose connections can be broken off by other threads, and know their age."""
        sockets = self._sockets

        class Plain(_Kept, HTTPConnection):
            def connect(self) -> None:
                super().connect()
                sockets.add(self.sock)

        class Secure(_Kept, HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                sockets.add(self.sock)

        class PlainPool(urllib3.HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(urllib3.HTTPSConnectionPool):
            ConnectionCls = Secure

        return {"http": PlainPool, "https": SecurePool}


class _Kept(HTTPConnection):
    """Tells a connection that was closed while it was kept from one that fails at once.

    A server may close it at any moment, also right after the pool has looked whether it did.
    """

    _answered = False

    def connect(self) -> None:
        self._answered = False
        super().connect()

    def request(self, *args: Any, **keywords: Any) -> None:
        with self._noticing():
            super().request(*args, **keywords)

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as in urllib3
        with self._noticing():
            response = super().getresponse()
        self._answered = True
        return response

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except ConnectionError as error:  # also what http.client makes of an early end
            if self._answered:
                raise ClosedMeanwhileError(str(error)) from error
            raise


def _closed_meanwhile(error: HTTPError) -> bool:
    cause = getattr(error, "reason", error)
    return any(isinstance(part, ClosedMeanwhileError) for part in getattr(cause, "args", ()))


def _certificates(environ: Mapping[str, str]) -> ssl.SSLContext:
    """The authorities that a user's own variables name, else the system's and certifi's."""
    named = next(filter(None, map(environ.get, _BUNDLES)), None)
    context = ssl.create_default_context(cafile=named)
    if named is None:
        import certifi

        # Some builds of Python know no authorities of the system.
        context.load_verify_locations(certifi.where())
    return context


def _proxy(scheme: str, host: str) -> str:
    """The proxy for a host, of the environment or of the system; empty for none."""
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _credentials(url: str, *, proxy: bool = False) -> dict[str, str]:
    """The header that says who asks, if the address does."""
    parts = urlsplit(url)
    if not parts.username:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    if proxy:
        return make_headers(proxy_basic_auth=pair, proxy_basic_auth_encoding="utf-8")
    return make_headers(basic_auth=pair, basic_auth_encoding="utf-8")
