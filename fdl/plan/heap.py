"""The heap of a training program: tells glibc to keep memory between steps.

Each training step allocates the same large blocks again. By default glibc takes every large block
from the system and returns it when it is freed, so each step pays for hundreds of thousands of page
faults. glibc reads the tunables before a program's first instruction
(https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html). So the
process that starts the program must set them. Imported on the warm path of entries.
"""

# pathlib would add to the start of a command.
# ruff: noqa: PTH118
from __future__ import annotations

import os

from fdl.base.errors import UsageError
from fdl.base.venv import module_file, with_imports
from fdl.manifest.node import Variable, origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.manifest.node import Node
    from fdl.plan.value import Plan


_MEMORY_VARIABLE = "FDL_MEMORY"
"""``default`` does not change the program's heap; wins over ``memory:`` of a manifest."""

TUNABLES_VARIABLE = "GLIBC_TUNABLES"

AUTO, KEEP, DEFAULT = MODES = ("auto", "keep", "default")
"""Programs that use flodl keep their heap; every program does; none does."""

_MOST = 1 << 30
"""Bytes that stay in a program at most; less on a machine with less than 16 GiB of memory."""

_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Of NVIDIA, of AMD, and of either in Windows' Linux."""

# Older versions keep a threshold of 128 KiB if the given one is above 32 MiB.
_FIRST_VERSION = (2, 35)


def tunables(given: str = "") -> str:
    """The user's tunables, plus those of a kept heap that the user does not set."""
    most = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16, _MOST)
    kept = {
        # Smaller blocks come from the heap, which is kept. Tensors of a step are rarely larger.
        "glibc.malloc.mmap_threshold": most,
        # Free memory at the end of the heap is returned only above this.
        "glibc.malloc.trim_threshold": most,
        # The heap grows by at least 64 MiB, not page by page. Pages that nobody uses are not there.
        "glibc.malloc.top_pad": min(64 << 20, most),
    }
    settings = given.split(":") if given else []
    if not all("=" in setting for setting in settings):
        # glibc ignores a text that it cannot parse. fdl does not repair it.
        return given
    named = {setting.partition("=")[0] for setting in settings}
    ours = [f"{name}={value}" for name, value in kept.items() if name not in named]
    return ":".join([*settings, *ours])


def keep_heap(plan: Plan, scopes: Sequence[Node], shell: Mapping[str, str]) -> None:
    """Set the tunables for an entry's program that uses flodl or asks for them, if glibc can.

    The scopes are mappings that may hold ``memory``, weakest first.

    Raises:
        UsageError: ``FDL_MEMORY`` is not a known word.
    """
    mode = _mode(plan, scopes, shell)
    if mode == DEFAULT or not (plan.service or _glibc_can()) or _trains_on_gpu():
        return
    if mode == AUTO and not uses_flodl(plan):
        return
    given = plan.env.get(TUNABLES_VARIABLE) or shell.get(TUNABLES_VARIABLE, "")
    merged = tunables(given)
    if merged == given:
        return
    losers = [(given, _origin(plan, TUNABLES_VARIABLE))] if given else []
    plan.set(Variable(TUNABLES_VARIABLE, merged, "fdl", losers=losers))


def _mode(plan: Plan, scopes: Sequence[Node], shell: Mapping[str, str]) -> str:
    """What the user asks for. The program is also told when a manifest or the shell declines."""
    asked = shell.get(_MEMORY_VARIABLE) or plan.env.get(_MEMORY_VARIABLE)
    if asked:
        if asked not in MODES:
            raise UsageError(
                f"{_MEMORY_VARIABLE}={asked} ({_origin(plan, _MEMORY_VARIABLE)}): "
                f"must be `{AUTO}`, `{KEEP}` or `{DEFAULT}`",
                hint=f"unset it, or set {_MEMORY_VARIABLE}={DEFAULT} to leave the heap alone",
            )
        if asked == DEFAULT and _MEMORY_VARIABLE not in plan.env:
            # A container needs the variable too; on the host the program inherits it.
            plan.variables.append(Variable(_MEMORY_VARIABLE, asked, "shell"))
        return asked
    stated = [node for scope in scopes if (node := scope.get("memory"))]
    if not stated:
        return AUTO
    if stated[-1].value == DEFAULT:
        plan.set(Variable(_MEMORY_VARIABLE, DEFAULT, origin(stated[-1], plan.root)))
    return str(stated[-1].value)


def _origin(plan: Plan, name: str) -> str:
    return next((one.origin for one in plan.variables if one.name == name), "shell")


def _trains_on_gpu() -> bool:
    """Whether there is a driver of a GPU: a training there has its large tensors elsewhere."""
    return any(map(os.path.exists, _DRIVERS))


def _glibc_can() -> bool:
    """Whether this machine's C library is a glibc that handles the tunables as intended."""
    try:
        # Windows has no such function. ValueError: the library is another one (musl, macOS).
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return name == "glibc" and tuple(map(int, version.split("."))) >= _FIRST_VERSION
    except (AttributeError, ValueError, OSError):
        return False


_LIBRARY = "flodl"


def uses_flodl(plan: Plan) -> bool:
    """Whether the program of an entry mentions flodl, itself or in a project module it imports.

    The arguments that it gets do not count.
    """
    generated = sum(flag.count for flag in plan.flags) + len(plan.typed)
    words, cwd = plan.argv[: len(plan.argv) - generated], plan.cwd
    if any(_LIBRARY in word for word in words):
        return True
    files = [os.path.join(cwd, word) for word in words if word.endswith(".py")]
    if "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        ends = ("__init__.py", "__main__.py")
        files += filter(None, (module_file([cwd], module, end) for end in ends))
    wanted = _LIBRARY.encode()
    return any(wanted in text for _, text in with_imports(files, [cwd]))
