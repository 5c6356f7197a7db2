"""HTTP connections that stay open between requests, and use the proxies of the system."""

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
"""Variables with which users name their own certificate authorities."""

_MOST_REDIRECTS = 10

# Retries are made by the callers, which know what has arrived already.
_ONCE = urllib3.Retry(0, redirect=False, raise_on_status=False)


class ClosedMeanwhileError(ConnectionResetError):
    """The server had closed a kept connection; a new connection may work."""


class AddressError(Exception):
    """Nothing can be downloaded from an address; the text says why."""


class Connections:
    """Opens connections and keeps them for later requests; usable by several threads at once.

    The variables for certificates are read from ``environ``, time-outs from ``options``.
    """

    def __init__(self, environ: Mapping[str, str], options: Options) -> None:
        self._environ = environ
        self._options = options
        self._guard = threading.Lock()
        # Scheme, proxy (empty for none) -> the pool manager that keeps the connections.
        self._managers: dict[tuple[str, str], urllib3.PoolManager] = {}
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._hung_up = False

    def close(self) -> None:
        """Close all kept connections."""
        for manager in self._managers.values():
            manager.clear()

    def hang_up(self) -> None:
        """Abort all requests that are running, so that no thread waits for them any longer."""
        self._hung_up = True
        for connected in list(self._sockets):
            # The method of TLS sockets would remove the keys that another thread reads with.
            with suppress(OSError):
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send a GET request and follow redirects; the caller reads the body.

        A user name and password in the address are sent too.

        Raises:
            AddressError: The address cannot work, or there are too many redirects.
            urllib3.exceptions.HTTPError: There is no answer.
        """
        for _ in range(_MOST_REDIRECTS):
            response = self._ask(url, headers)
            try:
                # Each redirect may need another proxy, other authorities and other credentials.
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
                raise AddressError("it is not an http:// or https:// address")
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
                    # Each such failure uses up a kept connection; a new one cannot fail this way.
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
        # Reading all authorities takes as long as downloading a few megabytes.
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
        """Pools whose connections other threads can abort, and which notice closed connections."""

        class Plain(_Kept, HTTPConnection):
            sockets = self._sockets

        class Secure(_Kept, HTTPSConnection):
            sockets = self._sockets

        class PlainPool(urllib3.HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(urllib3.HTTPSConnectionPool):
            ConnectionCls = Secure

        return {"http": PlainPool, "https": SecurePool}


class _Kept(HTTPConnection):
    """Tells a kept connection that was closed meanwhile from a connection that fails at once.

    A server may close it at any moment, also right after the pool checked it.
    """

    sockets: WeakSet[socket.socket]
    _answered = False

    def connect(self) -> None:
        self._answered = False
        super().connect()
        self.sockets.add(self.sock)

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
        except ConnectionError as error:  # http.client also raises it for an early end
            if self._answered:
                raise ClosedMeanwhileError(str(error)) from error
            raise


def _closed_meanwhile(error: HTTPError) -> bool:
    cause = getattr(error, "reason", error)
    return any(isinstance(part, ClosedMeanwhileError) for part in getattr(cause, "args", ()))


def _certificates(environ: Mapping[str, str]) -> ssl.SSLContext:
    """The authorities named by the user's variables, else those of the system and of certifi."""
    named = next(filter(None, map(environ.get, _BUNDLES)), None)
    context = ssl.create_default_context(cafile=named)
    if named is None:
        import certifi

        # Some builds of Python do not know the authorities of the system.
        context.load_verify_locations(certifi.where())
    return context


def _proxy(scheme: str, host: str) -> str:
    """The proxy for a host, from the environment or the system; empty for none."""
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _credentials(url: str, *, proxy: bool = False) -> dict[str, str]:
    """The header with the user name and password of an address, if it has any."""
    parts = urlsplit(url)
    if not parts.username:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    if proxy:
        return make_headers(proxy_basic_auth=pair, proxy_basic_auth_encoding="utf-8")
    return make_headers(basic_auth=pair, basic_auth_encoding="utf-8")
