"""The machine without its GPUs: processor, memory, containers and build tools.

Programs are asked one question, within a limited time.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fdl.base.files import text_of
from fdl.base.hardware.facts import System


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a program.

    Attributes:
        code: Its exit code; None if it took too long and was ended.
        text: Its output on stdout.
    """

    code: int | None
    text: str


def ask(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    patience: float,
    folders: Sequence[str] = (),
) -> Answer | None:
    """Run a program and return its answer; None if there is no such program, or it cannot be run.

    It is searched in the PATH of ``environ``, then in ``folders``, and has ``patience`` seconds.
    """
    path = os.pathsep.join([environ.get("PATH", os.defpath), *folders])
    program = shutil.which(argv[0], path=path)
    if program is None:
        return None
    # A file, because a pipe stays open as long as any child process of the program lives.
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return None
        code: int | None
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        out.seek(0)
        return Answer(code, out.read().decode(errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and its children, if they still run."""
    if process.poll() is not None:
        return
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)


_MARKS = (".dockerenv", "run/.containerenv")
_CGROUP = re.compile(r"docker|containerd|kubepods|libpod|/lxc")


def in_container(root: Path) -> bool:
    """Whether this process runs in a container."""
    return any((root / mark).exists() for mark in _MARKS) or bool(
        _CGROUP.search(text_of(root / "proc/self/cgroup"))
    )


def _in_wsl(root: Path) -> bool:
    """Whether the kernel is that of the Windows Subsystem for Linux."""
    return "microsoft" in text_of(root / "proc/sys/kernel/osrelease").lower()


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
        wsl=_in_wsl(root),
        python=platform.python_version(),
        executable=sys.executable,
        tools=tools,
    )


def _versions(environ: Mapping[str, str], patience: float) -> dict[str, str]:
    """Version of each installed program; ``unknown`` for one that does not give it."""

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
    release = re.search(r'^PRETTY_NAME="?([^"\n]+)', text_of(root / "etc/os-release"), re.MULTILINE)
    if release:
        return release[1]
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    return f"{platform.system()} {platform.release()}"


def _cpu(root: Path) -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
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
    total = re.search(r"^MemTotal:\s*(\d+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
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
    for line in text_of(root / "proc/self/cgroup").splitlines():
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
            limit = text_of(folder / name).strip()
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
