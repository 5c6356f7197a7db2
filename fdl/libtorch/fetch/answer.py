"""Request an archive, or a range of it, from a web server, and interpret the answers."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus

import certifi
import httpx2

from fdl.libtorch.fetch.failures import ChangedError, TransientError, UnreachableError, shown
from fdl.libtorch.fetch.options import Options
from fdl.libtorch.fetch.part import Version
from fdl.version import __version__

_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with which users name their own certificate authorities."""

_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses of failures that may pass."""

_REMEDIES = {
    401: "give a user name and a password: https://USER:PASSWORD@HOST/...",
    403: "the server refuses this user or this network; "
    "check the user name in the address, the proxy, and the server's list of allowed networks",
    404: "check the address; what it names may have been moved or never existed",
    407: "give the proxy a user name and a password: https_proxy=http://USER:PASSWORD@PROXY:PORT",
}
"""HTTP status -> what to do."""

_OTHER = "the server has another file now"


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer; its body is not read yet.

    Attributes:
        response: The answer itself.
        start: Offset in the file where the body begins.
        whole: Whether the body is the whole file, as from servers without ranges.
        version: The state of the file.
    """

    response: httpx2.Response
    start: int
    whole: bool
    version: Version

    def blocks(self) -> Iterator[bytes]:
        """The body as it arrives.

        Raises:
            TransientError: It stalls or ends early.
        """
        try:
            yield from self.response.iter_raw()
        except httpx2.HTTPError as error:
            raise _transient(error) from None


def open_client(environ: Mapping[str, str], options: Options) -> httpx2.Client:
    """A client with the certificate authorities that the user's variables name.

    Proxies are those of the process's environment or of the system.

    Raises:
        UnreachableError: The authorities or the proxy cannot be used.
    """
    context = _authorities(next(filter(None, map(environ.get, _BUNDLES)), None))
    try:
        return httpx2.Client(
            verify=context,
            timeout=httpx2.Timeout(options.stall_timeout, connect=options.connect_timeout),
            # A kept connection that the server closes meanwhile would look like a failure.
            limits=httpx2.Limits(max_keepalive_connections=0),
            follow_redirects=True,
            max_redirects=10,
            event_hooks={"response": [_refuse_downgrade]},
        )
    except ImportError:
        reason = "it is a SOCKS proxy, which needs the package `socksio`"
        raise UnreachableError(f"the proxy cannot be used: {reason}") from None
    except ValueError as error:
        raise UnreachableError(f"the proxy cannot be used: {error}") from None


@contextmanager
def get(client: httpx2.Client, url: str, span: str, known: Version) -> Iterator[Answer]:
    """Request a range of a file, in the form of ``Range``: ``-1024``, ``0-1023``.

    Raises:
        TransientError: A failure that may pass.
        ChangedError: The server has another state of the file than the known one.
        UnreachableError: There is no archive at the address.
    """
    headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
    headers["User-Agent"] = f"fdl/{__version__}"
    if known.validator:
        headers["If-Range"] = known.validator
    try:
        request = client.build_request("GET", url, headers=headers)
        if not request.url.host:
            raise httpx2.UnsupportedProtocol("it is not an http:// or https:// address")
        response = client.send(request, stream=True)
    # ValueError: such as a host name that IDNA refuses.
    except (
        httpx2.TooManyRedirects, httpx2.InvalidURL, httpx2.UnsupportedProtocol, ValueError
    ) as error:  # fmt: skip
        raise UnreachableError(
            f"cannot fetch {shown(url)}: {error}", hint="check the address and its redirects"
        ) from None
    except httpx2.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise UnreachableError(
                f"{shown(url)} has a certificate that cannot be verified: {error}",
                hint="with a certificate authority of your own: SSL_CERT_FILE=/path/to/ca.pem",
            ) from None
        raise _transient(error) from None
    with closing(response):
        answer = _interpret(response, shown(url), known)
        if known.is_other(answer.version):
            raise ChangedError(_OTHER)
        yield answer


def _interpret(response: httpx2.Response, where: str, known: Version) -> Answer:
    status, headers = response.status_code, response.headers
    said = f"{status} {httpx2.codes.get_reason_phrase(status)}".strip()
    if status in _PASSING:
        after = headers.get("Retry-After", "")
        raise TransientError(said, float(after) if after.isdecimal() else 0.0)
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and known.length:
        raise ChangedError(_OTHER)
    if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        raise UnreachableError(f"{where} answers {said}", hint=_REMEDIES.get(status, ""))
    encoding = headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise UnreachableError(
            f"{where} answers with `Content-Encoding: {encoding}`, which fdl did not ask for",
            hint="turn off compression of archives on that server or proxy, or download the file "
            "with another tool and install it with --from FILE",
        )
    if headers.get("Content-Type", "").startswith("text/html"):
        raise UnreachableError(
            f"{where} answers with a web page and not with an archive",
            hint="a proxy or a log-in page may stand between; open the address in a browser",
        )
    whole = status == HTTPStatus.OK
    if whole:
        match = re.fullmatch(r"()(\d*)", headers.get("Content-Length", ""))
    else:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
    if match is None:
        raise UnreachableError(f"{where} answers with an invalid range")
    version = Version(headers.get("ETag", ""), headers.get("Last-Modified", ""), int(match[2] or 0))
    return Answer(response, int(match[1] or 0), whole, version)


@cache
def _usual_authorities() -> ssl.SSLContext:
    """Those of the system and of certifi. To read them takes longer than to fetch a small file."""
    context = ssl.create_default_context()
    # Some builds of Python do not know the authorities of the system.
    context.load_verify_locations(certifi.where())
    return context


def _authorities(named: str | None) -> ssl.SSLContext:
    if named is None:
        return _usual_authorities()
    try:
        return ssl.create_default_context(cafile=named)
    except OSError as error:
        empty = isinstance(error, ssl.SSLError)
        reason = "there is no certificate in it" if empty else error.strerror
        raise UnreachableError(
            f"the certificate authorities of {named} cannot be read: {reason}",
            hint="name a file of certificates: SSL_CERT_FILE=/path/to/ca.pem",
        ) from None


def _refuse_downgrade(response: httpx2.Response) -> None:
    """Refuse a redirect that gives up encryption."""
    if response.url.scheme == "https" and response.has_redirect_location:
        target = response.url.join(response.headers["Location"])
        if target.scheme != "https":
            reason = f"a redirect leads from https to {target.scheme}://{target.host}"
            raise httpx2.UnsupportedProtocol(reason)


def _transient(error: httpx2.HTTPError) -> TransientError:
    if isinstance(error, httpx2.ConnectTimeout):
        return TransientError("the server does not accept the connection")
    if isinstance(error, httpx2.TimeoutException):
        return TransientError("the server sends no data any more", silent=True)
    if isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError):
        return TransientError("the connection broke off")
    return TransientError(str(error))
