"""The machine around the GPUs, read from file systems and programs made here."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from fdl.base.hardware import System, system
from tests.waiting import at_some_pace

KIB = 1 << 10
GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path):
    """``machine({"proc/meminfo": …}, {"cmake": "cmake version 3.28.1"})`` asks about a machine."""

    def ask(files: dict[str, str], programs: dict[str, str] | None = None, **more) -> System:
        for name, text in files.items():
            file = tmp_path / "root" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, body in (programs or {}).items():
            program = folder / name
            program.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
            program.chmod(0o755)
        return system({"PATH": str(folder)}, root=tmp_path / "root", **more)

    return ask


def test_this_machine_is_described():
    found = system()
    assert found.os
    assert found.cpu
    assert found.threads >= 1
    assert found.memory > GIB // 4
    assert found.executable == sys.executable
    assert found.python == ".".join(map(str, sys.version_info[:3]))


def test_threads_are_those_this_process_may_use():
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system has no affinity")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert system().threads == 1
    finally:
        os.sched_setaffinity(0, before)


def test_files_of_the_kernel_are_read(machine):
    found = machine(
        {
            "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  Gold\n",
            "proc/meminfo": f"MemTotal:       {32 * GIB // KIB} kB\nMemFree: 1 kB\n",
        }
    )
    assert (found.os, found.cpu) == ("Debian GNU/Linux 12 (bookworm)", "Intel(R) Xeon(R)  Gold")
    assert found.memory == 32 * GIB
    assert (found.container, found.wsl, found.docker, found.tools) == (False, False, "", {})


@pytest.mark.parametrize(
    ("cgroup", "limit"),
    [
        ("0::/user/job\n", "sys/fs/cgroup/user/job/memory.max"),
        ("0::/user/job\n", "sys/fs/cgroup/user/memory.max"),
        ("0::/\n", "sys/fs/cgroup/memory.max"),
        ("9:cpu:/\n4:memory:/job\n", "sys/fs/cgroup/memory/job/memory.limit_in_bytes"),
        ("4:memory:/docker/123\n", "sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ],
)
def test_the_limit_of_the_control_group_counts(machine, cgroup, limit):
    found = machine(
        {
            "proc/meminfo": f"MemTotal: {32 * GIB // KIB} kB\n",
            "proc/self/cgroup": cgroup,
            limit: f"{4 * GIB}\n",
        }
    )
    assert found.memory == 4 * GIB


def test_a_control_group_without_a_limit_changes_nothing(machine):
    found = machine(
        {
            "proc/meminfo": f"MemTotal: {32 * GIB // KIB} kB\n",
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": "max\n",
        }
    )
    assert found.memory == 32 * GIB


def test_versions_are_asked_of_the_programs(machine):
    found = machine(
        {},
        {
            "cmake": "echo 'cmake version 3.28.1'",
            "gcc": "echo 'gcc (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0'",
            "nvcc": "echo 'Copyright (c) 2005-2025 NVIDIA'; echo 'release 13.0, V13.0.48'",
            "docker": "echo 'Docker version 27.3.1, build ce12230'",
            "ninja": "exit 3",
        },
    )
    assert found.tools == {"cmake": "3.28.1", "gcc": "11.4.0", "nvcc": "13.0", "ninja": "unknown"}
    assert found.docker == "27.3.1"


def test_a_program_that_hangs_costs_no_more_than_its_time(machine):
    def found_in_time(factor: float) -> bool:
        programs = {"nvcc": "/bin/sleep 60", "git": "echo 'git version 2.43.0'"}
        began = time.monotonic()
        found = machine({}, programs, patience=0.1 * factor)
        assert time.monotonic() - began < 30
        return found.tools == {"git": "2.43.0", "nvcc": "unknown"}

    at_some_pace(found_in_time)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".dockerenv", ""),
        ("run/.containerenv", ""),
        ("proc/self/cgroup", "0::/kubepods/pod1/abc\n"),
    ],
)
def test_in_a_container_docker_reads_container(machine, file, text):
    found = machine({file: text}, {"docker": "echo 'Docker version 27.3.1'"})
    assert (found.container, found.docker) == (True, "container")


def test_linux_under_windows_is_recognised(machine):
    kernel = "5.15.153.1-microsoft-standard-WSL2\n"
    assert machine({"proc/sys/kernel/osrelease": kernel}).wsl
