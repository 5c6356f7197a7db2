"""Where the user's pip takes packages from: its environment variables and configuration files.

pip itself is not started: it takes longer than the request, and environments of uv and pipx have
none. The rules are those of https://pip.pypa.io/en/stable/topics/configuration/.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from configparser import Error, RawConfigParser
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from platformdirs import site_config_dir, site_data_dir, user_config_dir, user_data_dir

from fdl.terminal import is_set

PYPI = "https://pypi.org/simple"
"""The index that pip asks if nothing else is configured."""

_NAME = "pip.ini" if sys.platform == "win32" else "pip.conf"

_MACHINE = Path("/etc")
"""Folder of the file that pip reads there without a folder of its own."""

_SECTIONS = ("global", "install")
"""What an upgrade with pip reads; the second wins."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a request for a package needs to know.

    Attributes:
        indexes: Addresses of indexes, without a slash at the end; empty if pip may ask none.
        folders: Folders with files of packages, from ``find-links``.
        certificates: File with certificate authorities; empty for the usual ones.
        proxy: Address of a proxy; empty for that of the environment.
    """

    indexes: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    certificates: str = ""
    proxy: str = ""


def read(environ: Mapping[str, str], prefix: str = sys.prefix) -> Settings:
    """The settings of the user's pip, in the environment with this prefix; never raises.

    Of indexes, only addresses of http and https are kept.
    """
    found = {**_of_files(environ, prefix), **_of_variables(environ)}
    addresses = [found.get("index-url", PYPI), *found.get("extra-index-url", "").split()]
    if is_set(found, "no-index"):
        addresses = []
    servers = (one.rstrip("/") for one in addresses if one.startswith(("http://", "https://")))
    return Settings(
        indexes=tuple(dict.fromkeys(servers)),
        folders=tuple(filter(None, map(_folder, found.get("find-links", "").split()))),
        certificates=found.get("cert", ""),
        proxy=found.get("proxy", ""),
    )


def _folder(link: str) -> Path | None:
    """The folder that an entry of ``find-links`` names; None for a page of a server."""
    if link.startswith("file:"):
        return Path(url2pathname(urlsplit(link).path))
    return None if "://" in link else Path(link).expanduser()


def _of_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix("PIP_").lower().replace("_", "-"): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }


def _of_files(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Entries of the configuration files; ``install`` wins over ``global`` of any file."""
    if environ.get("PIP_CONFIG_FILE") == os.devnull:
        return {}
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for file in _files(environ.get("PIP_CONFIG_FILE", ""), prefix):
        parser = RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (OSError, ValueError, Error):
            # pip refuses a broken file; another one may name the index.
            continue
        for name in _SECTIONS:
            if parser.has_section(name):
                entries = ((key.replace("_", "-"), value) for key, value in parser.items(name))
                sections[name].update((key, value) for key, value in entries if value)
    return {key: value for name in _SECTIONS for key, value in sections[name].items()}


def _files(own: str, prefix: str) -> Iterator[Path]:
    """The configuration files, the strongest one last; ``own`` is that of ``PIP_CONFIG_FILE``."""
    if own:
        yield Path(own)
    if sys.platform == "darwin":
        yield Path(site_data_dir("pip", appauthor=False), _NAME)
        library = Path(user_data_dir("pip", appauthor=False, roaming=True))
        user = library if library.is_dir() else Path.home() / ".config/pip"
    else:
        shared = site_config_dir("pip", appauthor=False, multipath=True)
        yield from (Path(folder, _NAME) for folder in shared.split(os.pathsep))
        user = Path(user_config_dir("pip", appauthor=False, roaming=True))
    if os.name == "posix":
        yield _MACHINE / _NAME
    if not (own and Path(own).exists()):
        yield Path.home() / ("pip" if sys.platform == "win32" else ".pip") / _NAME
        yield user / _NAME
    yield Path(prefix, _NAME)
