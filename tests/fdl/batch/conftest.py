"""A project on a machine of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Fdl, Project, Session
from tests.fdl.batch.real import RealCluster, real_cluster
from tests.fdl.batch.stand_in import installed
from tests.waiting import wait_for


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The variables of a machine where SLURM's programs are found."""
    return installed(tmp_path / "cluster")


@pytest.fixture(scope="session")
def plain_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A real cluster that keeps no records of its jobs."""
    with real_cluster(tmp_path_factory.mktemp("plain"), accounting=False) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def accounting_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A real cluster with accounting."""
    with real_cluster(tmp_path_factory.mktemp("accounting"), accounting=True) as cluster:
        yield cluster


@pytest.fixture(params=["plain", "accounting"])
def real(request: pytest.FixtureRequest) -> RealCluster:
    """Each of them, without jobs and with all its nodes."""
    cluster: RealCluster = request.getfixturevalue(f"{request.param}_cluster")
    cluster.run("scancel", "--user=root")
    wait_for(cluster.is_idle, 90)
    return cluster


@pytest.fixture
def slurm(fdl: Fdl, cluster: dict[str, str]) -> Callable[..., Session]:
    """``slurm("train")`` types ``fdl --on slurm train`` there."""
    return lambda *words, **more: fdl("--on", "slurm", *words, env=cluster, **more)


@pytest.fixture
def program(project: Project) -> Callable[..., Path]:
    """A project whose command `train` is a program, with more lines in its manifest."""

    def make(text: str, more: str = "") -> Path:
        entry = f"entry: {sys.executable} train.py\n{more}"
        files = {"fdl.yml": "slurm: {time: 60}\ncommands: {train: }\n", "train/fdl.yml": entry}
        return project({**files, "train/train.py": text}) / "train"

    return make
