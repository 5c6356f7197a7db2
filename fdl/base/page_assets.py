"""The page of ``fdl`` and ``flodl``: its scripts and its style in one file, and its policy.

The same page shows one run, many runs, a timeline or some curves; its data say which. It is served,
or a file that needs no network.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SCRIPTS = (
    "uplot.js",
    "dom.js",
    "format.js",
    "scale.js",
    "chart.js",
    "record.js",
    "curves.js",
    "panel.js",
    "parts.js",
    "media.js",
    "timeline.js",
    "main.js",
)
"""In the order of their dependencies. A page that is served has more, before the last."""

_SERVED_SCRIPTS = ("runs.js", "table.js", "relations.js", "served.js")
"""Everything that reads from a server, as the page of many runs does; a file has no such code."""


def asset(name: str) -> str:
    """The text of a file of the page: ``page.css``, ``format.js``.

    Raises:
        FileNotFoundError: There is no such file.
    """
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def page(title: str, parts: Mapping[str, str], *, served: bool = False) -> str:
    """The page with its data.

    Args:
        title: The title of the window.
        parts: What the page shows, by name, as JSON.
        served: Whether it reads from the server that it came from.
    """
    shell, _, _ = _parts(served)
    data = ",".join(f"{json.dumps(name)}:{text}" for name, text in parts.items())
    # `<` begins no tag inside a JSON string when it is written as an escape.
    data = f"{{{data}}}".replace("<", "\\u003c")
    return shell.substitute(title=html.escape(title), policy=policy(served=served), data=data)


def run_page(
    facts: Mapping[str, object],
    records: Iterable[str],
    parts: Mapping[str, object],
    *,
    finish: str = "null",
    media: str = "null",
    served: bool = False,
) -> str:
    """The page of one run.

    Args:
        facts: What is known of the run, with its ``label`` and its name ``run``.
        records: Its epochs, each as JSON.
        parts: What else the page shows, by name; no number may be infinite.
        finish: Its end, as JSON.
        media: Its media, as JSON.
        served: Whether the page reads from the server that it came from.
    """
    texts = {
        name: json.dumps(part, separators=(",", ":"), allow_nan=False)
        for name, part in {"info": facts, **parts}.items()
    }
    texts |= {"records": f"[{','.join(records)}]", "finish": finish, "media": media}
    names = (facts.get("label") or "Training run", facts.get("run"))
    return page(" · ".join(str(name) for name in names if name), texts, served=served)


@functools.cache
def policy(*, served: bool) -> str:
    """The content security policy of the page: it allows only its own script and style.

    Args:
        served: Whether the page may also read from the server that it came from.
    """
    _, script, style = _parts(served)
    own = ["'self'"] if served else []
    rules = [
        ["default-src", "'none'"],
        ["script-src", _digest(script)],
        ["style-src", _digest(style)],
        ["img-src", *own, "data:"],
        ["connect-src", *(own or ["'none'"])],
        ["base-uri", "'none'"],
        ["form-action", "'none'"],
    ]
    return "; ".join(" ".join(rule) for rule in rules)


@functools.cache
def _parts(served: bool) -> tuple[Template, str, str]:
    """The page, open for ``$title $policy $data``; its script, and its style."""
    *first, last = _SCRIPTS
    names = [*first, *(_SERVED_SCRIPTS if served else ()), last]
    script = "\n" + "\n".join(map(asset, names))
    style = "\n" + asset("page.css")
    # A dollar sign of a file begins no placeholder.
    places = {"style": style.replace("$", "$$"), "script": script.replace("$", "$$")}
    return Template(Template(asset("page.html")).safe_substitute(places)), script, style


def _digest(text: str) -> str:
    """The source of the policy that allows exactly this inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
