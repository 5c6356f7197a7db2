"""Detect whether this process runs in a container, or in Linux under Windows."""

from __future__ import annotations

import re
from pathlib import Path

_MARKS = (".dockerenv", "run/.containerenv")
_CGROUP = re.compile(r"docker|containerd|kubepods|libpod|/lxc")


def in_container(root: Path) -> bool:
    """Whether this process runs in a container."""
    return any((root / mark).exists() for mark in _MARKS) or bool(
        _CGROUP.search(read(root / "proc/self/cgroup"))
    )


def in_wsl(root: Path) -> bool:
    """Whether the kernel is that of the Windows Subsystem for Linux."""
    return "microsoft" in read(root / "proc/sys/kernel/osrelease").lower()


def read(file: Path) -> str:
    """The text of one of the kernel's files; empty if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
