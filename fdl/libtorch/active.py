"""The active libtorch variant of a project: ``libtorch/.active``, and the variant's ``.arch``.

Warm commands of projects with a variant import this module, so it imports only small modules.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH118
from __future__ import annotations

import os

from fdl.base.files import text_of
from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "libtorch"
"""Name of the store's folder, under the project's root."""

LOCK_FILE = "libtorch.lock"

CPU_ID = "precompiled/cpu"

KINDS = ("precompiled", "builds")
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class Variant(Record):
    """An installed variant.

    Attributes:
        id: ``KIND/NAME``, e.g. ``precompiled/cu128``.
        path: Its absolute folder.
        facts: The entries of its ``.arch``: ``cuda``, ``torch``, ``archs`` …; empty without the
            file.
    """

    id: str
    path: str
    facts: Mapping[str, str]

    @property
    def cuda(self) -> str | None:
        """The CUDA version it is built for, as written; None for CPU or if unknown."""
        version = self.facts.get("cuda", "")
        return version if version not in ("", "none") else None


def is_id(text: str) -> bool:
    """Whether a text has the form of a variant's id; the variant need not be installed."""
    kind, _, name = text.partition("/")
    return kind in KINDS and _NAME.issuperset(name) and bool(name.strip("."))


def active_id(project: str) -> str:
    """What ``libtorch/.active`` says; empty if it says nothing."""
    return text_of(os.path.join(project, FOLDER, ".active"), "strict").strip()


def active(project: str) -> Variant | None:
    """The active variant of a project (absolute path); None if its file is missing or wrong."""
    id = active_id(project)
    if not is_id(id):
        return None
    path = os.path.join(project, FOLDER, *id.split("/"))
    return Variant(id, path, read_facts(path))


def read_facts(folder: str) -> dict[str, str]:
    """The entries of a variant's ``.arch`` file; empty without one."""
    pairs = (
        line.partition("=")
        for line in text_of(os.path.join(folder, ".arch"), "strict").splitlines()
    )
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def host_variables(project: str, known: Mapping[str, str]) -> dict[str, str]:
    """The variables with which programs on this machine find the active variant of a project.

    The result is empty if ``LIBTORCH`` or ``LIBTORCH_PATH`` is known already. ``LD_LIBRARY_PATH``
    is left out: it would replace the libraries of a torch wheel by these.
    """
    variant = active(project)
    if variant is None or "LIBTORCH" in known or "LIBTORCH_PATH" in known:
        return {}
    return {"LIBTORCH": variant.path, "LIBTORCH_PATH": variant.path}


def compose_variables(project: str) -> dict[str, tuple[str, str]]:
    """Variables for a compose file: name -> value and origin; paths relative to the project.

    - ``LIBTORCH_CPU_PATH``: always.
    - ``LIBTORCH_HOST_PATH`` and ``TORCH_VERSION`` (version of torch): for the active variant.
    - ``CUDA_VERSION`` (three components) and ``CUDA_TAG`` (two): for a variant with CUDA.
    """
    found = {"LIBTORCH_CPU_PATH": (f"./{FOLDER}/{CPU_ID}", "fdl")}
    variant = active(project)
    if variant is not None:
        folder = f"{FOLDER}/{variant.id}"
        found["LIBTORCH_HOST_PATH"] = f"./{folder}", f"{FOLDER}/.active"
        torch = variant.facts.get("torch")
        if torch:
            found["TORCH_VERSION"] = torch, f"{folder}/.arch"
        if variant.cuda:
            parts = variant.cuda.split(".")
            parts += ["0"] * (3 - len(parts))
            found["CUDA_VERSION"] = ".".join(parts), f"{folder}/.arch"
            found["CUDA_TAG"] = ".".join(parts[:2]), f"{folder}/.arch"
    return found
