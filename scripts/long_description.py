"""The build's long description: README.md with absolute links.

A package index shows the description without the repository. There, a relative link leads nowhere.
Hatch calls the hook at the end of this file; ``pyproject.toml`` names it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<image>!?)(?P<label>\[[^]]*\])\((?P<target>[^)\s]+)\)")
_ABSOLUTE = re.compile(r"[a-z][a-z+.-]*:|//", re.IGNORECASE)


def reference(version: str) -> str:
    """The tag of a release; the branch ``main`` for versions between releases."""
    return f"v{version}" if re.fullmatch(r"\d+(\.\d+)*", version) else "main"


def absolute(text: str, source: str, ref: str) -> str:
    """Text of Markdown whose relative links lead into the repository.

    Args:
        text: The Markdown. Code in fences stays as it is.
        source: Address of the repository.
        ref: Branch or tag.
    """

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if _ABSOLUTE.match(target) or target.startswith("#"):
            return found[0]
        view = "raw" if found["image"] else "blob"
        return f"{found['image']}{found['label']}({source}/{view}/{ref}/{target})"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])


class LongDescription(MetadataHookInterface):
    """Gives the project its ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by Hatch before a build, with the table ``[project]``."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source = metadata["urls"]["Source"]
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, source, reference(metadata["version"])),
        }
