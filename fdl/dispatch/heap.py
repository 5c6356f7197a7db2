"""The heap of a training program: glibc is told to keep memory between the steps.

A training step asks for the same large blocks again and again. By itself glibc takes every large
block from the system and gives it back when it is freed, so each step pays for hundreds of
thousands of page faults. The tunables are read before a program's first instruction
(https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html), which is
why the one who starts the program sets them. Imported on the warm path of entries.
"""

from __future__ import annotations

import os

from fdl.errors import UsageError
from fdl.manifest import origin
from fdl.plan import Variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fdl.manifest import Node
    from fdl.plan import Plan

MEMORY_VARIABLE = "FDL_MEMORY"
"""``default`` leaves the program's heap alone; stronger than ``memory:`` of a manifest."""

TUNABLES_VARIABLE = "GLIBC_TUNABLES"

AUTO, DEFAULT = MODES = ("auto", "default")

KEPT_HEAP = {
    # Back large parts of the heap with huge pages: one fault for 2 MiB instead of 512.
    "glibc.malloc.hugetlb": "1",
    # Below 1 GiB a block comes from the heap, which stays; a larger one is no tensor of a step.
    "glibc.malloc.mmap_threshold": str(1 << 30),
    # What is free at the heap's end goes back only when it is more than 16 GiB.
    "glibc.malloc.trim_threshold": str(16 << 30),
    # The heap grows by 64 MiB at least, not page by page.
    "glibc.malloc.top_pad": str(64 << 20),
}
"""Tunable -> value in bytes, or a switch. The number of arenas stays what glibc makes it."""

# Older ones keep a threshold of 128 KiB when they are told one above 32 MiB.
_FIRST_VERSION = (2, 35)


def keep_heap(plan: Plan, scopes: Sequence[Node], shell: Mapping[str, str]) -> None:
    """Give an entry's program the tunables, where they count and nobody declined.

    Args:
        plan: The plan of an entry, with the variables that manifests give it.
        scopes: Mappings that may hold ``memory``, weakest first.
        shell: fdl's own environment.

    Raises:
        UsageError: ``FDL_MEMORY`` is no known word.
    """
    if _declined(plan, scopes, shell) or not (plan.service or _glibc_can()):
        return
    given = plan.env.get(TUNABLES_VARIABLE) or shell.get(TUNABLES_VARIABLE, "")
    merged = _merged(given)
    if merged == given:
        return
    losers = [(given, _origin(plan, TUNABLES_VARIABLE))] if given else []
    plan.set(Variable(TUNABLES_VARIABLE, merged, "fdl", losers=losers))


def _declined(plan: Plan, scopes: Sequence[Node], shell: Mapping[str, str]) -> bool:
    """Whether the heap stays as it is; a manifest's word for it is told to the program."""
    asked = shell.get(MEMORY_VARIABLE) or plan.env.get(MEMORY_VARIABLE)
    if asked:
        if asked not in MODES:
            raise UsageError(
                f"{MEMORY_VARIABLE}={asked} ({_origin(plan, MEMORY_VARIABLE)}): "
                f"must be `{AUTO}` or `{DEFAULT}`",
                hint=f"unset it, or set {MEMORY_VARIABLE}={DEFAULT} to leave the heap alone",
            )
        if asked == DEFAULT and MEMORY_VARIABLE not in plan.env:
            # A container is told as well; on the host it is inherited.
            plan.variables.append(Variable(MEMORY_VARIABLE, asked, "shell"))
        return asked == DEFAULT
    stated = [node for scope in scopes if (node := scope.get("memory"))]
    if not stated or stated[-1].value != DEFAULT:
        return False
    plan.set(Variable(MEMORY_VARIABLE, DEFAULT, origin(stated[-1], plan.root)))
    return True


def _origin(plan: Plan, name: str) -> str:
    return next((one.origin for one in plan.variables if one.name == name), "shell")


def _glibc_can() -> bool:
    """Whether this machine's C library is a glibc that takes the tunables as they are meant."""
    try:
        # Not on Windows; ValueError where the library is another one: musl, macOS.
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return name == "glibc" and _numbers(version.split(".")) >= _FIRST_VERSION
    except (AttributeError, ValueError, OSError):
        return False


def _numbers(parts: Iterable[str]) -> tuple[int, ...]:
    return tuple(int(part) for part in parts)


def _merged(given: str) -> str:
    """The tunables of the user, and those of ours that the user says nothing about."""
    settings = given.split(":") if given else []
    if not all("=" in setting for setting in settings):
        # glibc ignores a text it cannot read; it is not ours to repair.
        return given
    named = {setting.partition("=")[0] for setting in settings}
    ours = [f"{name}={value}" for name, value in KEPT_HEAP.items() if name not in named]
    return ":".join([*settings, *ours])
