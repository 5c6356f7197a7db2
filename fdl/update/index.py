"""The versions of a package on an index: the simple API of PEP 503, as JSON by PEP 691."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    parse_sdist_filename,
    parse_wheel_filename,
)

from fdl.fetch.client import AddressError, Client
from fdl.version import __version__

_JSON = "application/vnd.pypi.simple.v1+json"

# Mirrors that know no JSON send a page.
_ACCEPTED = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"

_LARGEST = 16 << 20
"""The most bytes of an answer; a package with 40 thousand files has about as many."""


def versions(client: Client, index: str, name: str) -> list[str]:
    """The versions of a package that this Python can install, in no order; never raises.

    Yanked files do not count. The result is empty if the index does not know the package, does not
    answer, or answers with something else.

    Args:
        client: Sends the request.
        index: Address of the index, without a slash at the end.
        name: Normalised name of the package.
    """
    headers = {"Accept": _ACCEPTED, "User-Agent": f"fdl/{__version__}"}
    try:
        with client.get(f"{index}/{name}/", headers) as response:
            if response.status_code != httpx2.codes.OK:
                return []
            text = _text(response)
            is_json = response.headers.get("Content-Type", "").startswith(_JSON)
    except (httpx2.HTTPError, AddressError):
        return []
    files = _listed(text) if is_json else _linked(text)
    return [version for file in files for version in _version(file, name)]


def versions_in(folder: Path, name: str) -> list[str]:
    """The versions of a package whose files are in a folder; empty if it cannot be read."""
    try:
        files = [{"filename": one.name} for one in folder.iterdir()]
    except OSError:
        return []
    return [version for file in files for version in _version(file, name)]


def _text(response: httpx2.Response) -> str:
    body = bytearray()
    for block in response.iter_bytes():
        body += block
        if len(body) > _LARGEST:
            return ""
    return body.decode(errors="replace")


def _listed(text: str) -> list[dict[str, Any]]:
    """The files of a document of JSON."""
    try:
        files = json.loads(text)["files"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return [one for one in files if isinstance(one, dict)] if isinstance(files, list) else []


class _Links(HTMLParser):
    """Collects the links of a page in the form of the JSON document."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a" and (target := found.get("href")):
            with suppress(ValueError):
                self.files.append(
                    {
                        "filename": unquote(urlsplit(target).path.rpartition("/")[2]),
                        "requires-python": found.get("data-requires-python"),
                        "yanked": "data-yanked" in found,
                    }
                )


def _linked(text: str) -> Iterable[dict[str, Any]]:
    links = _Links()
    links.feed(text)
    return links.files


def _version(file: Mapping[str, Any], name: str) -> Iterator[str]:
    """The version of a file of that package; none if this Python cannot install it."""
    requires = file.get("requires-python") or ""
    with suppress(
        InvalidWheelFilename, InvalidSdistFilename, InvalidSpecifier, AttributeError, TypeError
    ):
        is_wheel = file["filename"].endswith(".whl") if "filename" in file else False
        parsed = (parse_wheel_filename if is_wheel else parse_sdist_filename)(file["filename"])
        runs = SpecifierSet(requires).contains(platform.python_version(), prereleases=True)
        if runs and parsed[0] == name and not file.get("yanked"):
            yield str(parsed[1])
