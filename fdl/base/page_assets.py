"""The pages of ``fdl`` and ``flodl``: their scripts and styles in one file, and their policy."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
from importlib import resources
from string import Template

_CHARTS = (
    "uplot.js",
    "elements.js",
    "theme.js",
    "format.js",
    "scale.js",
    "plot.js",
    "chart.js",
    "linechart.js",
)
"""What a page with charts begins with, in the order of their dependencies."""


def asset(name: str) -> str:
    """The text of a file that all pages have: ``base.css``, ``format.js``.

    Raises:
        FileNotFoundError: There is no such file.
    """
    return read(__package__, f"page/{name}")


def read(package: str, path: str) -> str:
    """The text of a file in a package."""
    return (resources.files(package) / path).read_text(encoding="utf-8")


class Page:
    """A page that is one file: its own scripts and style, and a place for data.

    Args:
        package: Where its files are.
        folder: The folder of its files in this package.
        shell: The name of its HTML, with ``$title $policy $style $scripts $data``.
        scripts: The names of its scripts, in the order of their dependencies.
        styles: The names of its styles, after the one of all pages.
        served_scripts: What a page that is served has before its last script.
    """

    def __init__(
        self,
        package: str,
        folder: str,
        shell: str,
        scripts: tuple[str, ...],
        styles: tuple[str, ...],
        *,
        served_scripts: tuple[str, ...] = (),
    ) -> None:
        self._package = package
        self._folder = folder
        self._shell = shell
        self._scripts = scripts
        self._styles = styles
        self._served_scripts = served_scripts

    def text(self, title: str, data: str, *, served: bool = False) -> str:
        """The page with its data.

        Args:
            title: The title of the window.
            data: JSON, in which every ``<`` is an escape.
            served: Whether it reads from the server that it came from.
        """
        policy = self.policy(served=served)
        return self._filled(served).substitute(title=html.escape(title), policy=policy, data=data)

    @functools.cache  # noqa: B019 - there are few pages
    def policy(self, *, served: bool) -> str:
        """The content security policy of the page: it allows only its own script and style.

        Args:
            served: Whether the page may also read from the server that it came from.
        """
        own = ["'self'"] if served else []
        rules = [
            ["default-src", "'none'"],
            ["script-src", _digest(self._script(served))],
            ["style-src", _digest(self._style)],
            ["img-src", *own, "data:"],
            ["connect-src", *(own or ["'none'"])],
            ["base-uri", "'none'"],
            ["form-action", "'none'"],
        ]
        return "; ".join(" ".join(rule) for rule in rules)

    @functools.cache  # noqa: B019 - there are few pages
    def _filled(self, served: bool) -> Template:
        """The page with style and script; open: ``$title $policy $data``."""
        script = f"<script>{self._script(served)}</script>"
        # A dollar sign of a file begins no placeholder.
        places = {
            "style": self._style.replace("$", "$$"),
            "scripts": script.replace("$", "$$"),
        }
        return Template(Template(self._own(self._shell)).safe_substitute(places))

    def _script(self, served: bool) -> str:
        *first, last = self._scripts
        own = [*first, *(self._served_scripts if served else ()), last]
        return "\n" + "\n".join([*map(asset, _CHARTS), *map(self._own, own)])

    @functools.cached_property
    def _style(self) -> str:
        return "\n" + "\n".join([asset("base.css"), *map(self._own, self._styles)])

    def _own(self, name: str) -> str:
        return read(self._package, f"{self._folder}/{name}")


RUN_PAGE = Page(
    __package__ or "fdl.base",
    "page/run",
    "report.html",
    (
        "model.js",
        "axis.js",
        "spark.js",
        "groups.js",
        "progress.js",
        "panels.js",
        "media_plots.js",
        "media.js",
        "timeline_data.js",
        "timeline_lanes.js",
        "timeline.js",
        "view.js",
        "main.js",
    ),
    ("report.css", "media.css", "timeline.css"),
    served_scripts=("acts.js", "live.js"),
)
"""The page of one run: the live page if it is served; as a file a report, a timeline or curves."""


def _digest(text: str) -> str:
    """The source of the policy that allows exactly this inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
