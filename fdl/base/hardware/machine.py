"""The machine without its GPUs: processor, memory, containers and build tools."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from fdl.base.hardware.ask import ask
from fdl.base.hardware.container import in_container, in_wsl, read
from fdl.base.hardware.facts import System

_TOOLS = ("nvcc", "cmake", "ninja", "git", "gcc", "g++", "cc", "python3", "uv")

_VERSION = re.compile(r"\d+(?:\.\d+)+")


def survey(environ: Mapping[str, str], root: Path, patience: float) -> System:
    """Read files and ask programs; see :func:`fdl.base.hardware.system`."""
    container = in_container(root)
    tools = _versions(environ, patience)
    docker = tools.pop("docker", "")
    return System(
        os=_os(root),
        cpu=_cpu(root),
        threads=threads(),
        memory=main_memory(root),
        docker="container" if container else docker,
        container=container,
        wsl=in_wsl(root),
        python=platform.python_version(),
        executable=sys.executable,
        tools=tools,
    )


def _versions(environ: Mapping[str, str], patience: float) -> dict[str, str]:
    """Version of each installed program; ``unknown`` for one that does not give it."""
    from concurrent.futures import ThreadPoolExecutor

    def version(name: str) -> str | None:
        answer = ask([name, "--version"], environ, patience=patience)
        if answer is None:
            return None
        found = _VERSION.search(answer.text) if answer.code == 0 else None
        return found[0] if found else "unknown"

    names = (*_TOOLS, "docker")
    with ThreadPoolExecutor(len(names)) as pool:
        found = dict(zip(names, pool.map(version, names), strict=True))
    return {name: known for name, known in found.items() if known}


def _os(root: Path) -> str:
    release = re.search(r'^PRETTY_NAME="?([^"\n]+)', read(root / "etc/os-release"), re.MULTILINE)
    if release:
        return release[1]
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{platform.system()} {platform.release()}"


def _cpu(root: Path) -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", read(root / "proc/cpuinfo"), re.MULTILINE)
    if model:
        return model[1].strip()
    if sys.platform == "darwin":
        answer = ask(["sysctl", "-n", "machdep.cpu.brand_string"], os.environ, patience=2.0)
        if answer and answer.code == 0:
            return answer.text.strip()
    return platform.processor() or platform.machine()


def threads() -> int:
    """Hardware threads that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main_memory(root: Path) -> int:
    """Bytes of main memory, or of the lowest limit of this process's control groups."""
    known = [size for size in (_installed_memory(root), *_limits(root)) if size]
    return min(known, default=0)


def _installed_memory(root: Path) -> int:
    total = re.search(r"^MemTotal:\s*(\d+) kB", read(root / "proc/meminfo"), re.MULTILINE)
    if total:
        return int(total[1]) << 10
    if sys.platform == "win32":
        return _windows_memory()
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0


def _limits(root: Path) -> Iterator[int]:
    """Memory limits of the control groups of this process, from its own group up to the root."""
    for line in read(root / "proc/self/cgroup").splitlines():
        _, _, group_of = line.partition(":")
        controllers, _, path = group_of.partition(":")
        if controllers == "":
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            limit = read(folder / name).strip()
            if limit.isdigit():
                yield int(limit)
            if folder == top:
                break


def _windows_memory() -> int:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((f"amount{number}", ctypes.c_ulonglong) for number in range(7)),
        ]

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined,unused-ignore]
    return int(status.amount0)
