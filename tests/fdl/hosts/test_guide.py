"""The three ways of ``docs/guide/machines.md``, typed with real parts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Fdl
from tests.fdl.batch.conftest import plain_cluster as plain_cluster  # a fixture
from tests.fdl.batch.real import RealCluster
from tests.fdl.hosts.hosts import Hosts
from tests.test_guides import BLOCK, DOCS, sessions

PAGE = (DOCS / "guide" / "machines.md").read_text(encoding="utf-8")
WAYS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
FILES = {name: text for _, name, text in BLOCK.findall(PAGE) if name and name != "no-run"}
FILES["train/fdl.yml"] = FILES["train/fdl.yml"].replace("python", sys.executable)

Make = Callable[..., Path]


def typed_in(way: str) -> tuple[str, list[str]]:
    """The last command of a section, and what it promises."""
    return sessions(BLOCK.findall(WAYS[way])[-1][2])[-1]


@pytest.fixture
def folder(project: Make) -> Path:
    """The project of the page, on both hosts."""
    manifest = FILES["fdl.yml"].partition("hosts:")[0]
    return project({**FILES, "fdl.yml": manifest})


def test_hosts(two: Hosts, folder: Path) -> None:
    line, promised = typed_in("Hosts of your own")
    code, out, err = two.fdl(*line.split()[1:], cwd=folder)
    assert code == 0, err
    assert sorted(out.splitlines()) == promised[3:]
    rows = [row.split("ok")[0] for row in promised[1:3]]
    assert [row.split("ok")[0] for row in err.splitlines()[1:3]] == rows


@pytest.mark.slow
def test_slurm(plain_cluster: RealCluster, fdl: Fdl, tmp_path: Path) -> None:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    line, promised = typed_in("A SLURM cluster")
    done = fdl(*line.split()[1:], env=plain_cluster.variables, timeout=300)
    assert done.exit == 0, done.err
    assert sorted(done.out.splitlines()) == promised[2:]


@pytest.mark.slow
def test_a_launcher_of_ones_own(two: Hosts, folder: Path) -> None:
    line, promised = typed_in("A launcher of your own")
    address = two.hosts["alpha"].address
    words = [*line.split()[1:-1], line.split()[-1].replace("10.0.0.1", address)]
    programs = [
        subprocess.Popen(
            [*host.within, sys.executable, "-m", "fdl", *words],
            cwd=folder.parent / name,
            env={**two.environ, **host.environ},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, host in two.hosts.items()
    ]
    said = sorted(program.communicate(timeout=90)[0].strip() for program in programs)
    assert said == [promised[0], promised[0].replace("0 of", "1 of")]
