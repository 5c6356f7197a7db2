"""Trainings over several hosts: the cable breaks, a host dies and comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flodl.train.run.verify import verify_run
from tests.flodl.distributed.jobs import Job, job, runs
from tests.flodl.distributed.network import Host, two_hosts, why_not

PORT = 29411
"""Nobody else listens in the networks of these hosts."""

IMPATIENT = "join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
"""For the launchers: how long to wait for other hosts, and how soon one counts as lost."""

PATIENCE = 5
"""Seconds that an exchange may take; then a rank counts as lost."""

NOTICED = 30.0
"""Seconds within which every rank must have noticed: a busy machine is slow to say so."""


class Cluster:
    """Two hosts, and the launchers on them."""

    def __init__(self, folder: Path, hosts: tuple[Host, Host], stack: ExitStack) -> None:
        self.folder, self.hosts, self._stack = folder, hosts, stack
        self.meets_on = 0

    def start(self, number: int, options: Mapping[str, Any], *, nodes: str = "1:2") -> Job:
        """Launch the training on one of the hosts; the command is the same on both."""
        host, meeting = self.hosts[number], self.hosts[self.meets_on]
        return self._stack.enter_context(
            job(
                self.folder,
                options,
                f"--nnodes={nodes}",
                "--nproc-per-node=1",
                "--max-restarts=3",
                "--rdzv-backend=c10d",
                "--rdzv-id=two-hosts",
                f"--rdzv-endpoint={meeting.address}:{PORT}",
                f"--rdzv-conf={IMPATIENT},is_host={int(host is meeting)}",
                f"--local-addr={host.address}",
                within=host.within,
                environ={**host.environ, "FLODL_SYNC_TIMEOUT": str(PATIENCE)},
            )
        )


@pytest.fixture(scope="module")
def obstacle() -> str | None:
    return why_not()


@pytest.fixture
def cluster(obstacle: str | None, tmp_path: Path) -> Iterator[Cluster]:
    if obstacle is not None:
        pytest.skip(obstacle)
    with two_hosts() as hosts, ExitStack() as stack:
        yield Cluster(tmp_path, hosts, stack)


def told(jobs: Sequence[Job]) -> str:
    """What everybody has printed, and who began when."""
    return "\n".join([*(one.output() for one in jobs), jobs[0].read("starts")])


def assert_proven(training: Job, epochs: int) -> None:
    found = verify_run(training.run)
    assert found.proven, found
    assert found.complete_epochs == epochs


@pytest.mark.slow
def test_two_hosts_train_together(cluster: Cluster) -> None:
    options = {"ddp": {}, "epochs": 3, "batch_ms": 4}
    first, second = cluster.start(0, options), cluster.start(1, options)
    assert (first.wait(), second.wait()) == (0, 0), told([first, second])
    assert first.result(0)["params"] == first.result(1)["params"]
    assert_proven(first, 3)
    assert {start["host"] for start in first.starts(2)} == {host.name for host in cluster.hosts}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nccl-cadence", "nccl-async", "sync", "cpu-cadence"])
def test_a_broken_cable_stops_the_training_until_it_is_back(cluster: Cluster, mode: str) -> None:
    ddp = {"mode": mode, "snapshot_timeout": 1}
    options = {"ddp": ddp, "epochs": 6, "batch_ms": 20}
    jobs = [cluster.start(number, options, nodes="2") for number in (0, 1)]
    first = jobs[0]
    first.wait_for("epoch 2", lambda: first.epoch(0) >= 2)
    cluster.hosts[1].plug("down")
    # With the cpu backend, rank 1 asks a store on the other host, and waits for the answer.
    for start in first.starts(2):
        if mode != "cpu-cadence" or start["rank"] == 0:
            first.wait_for("the end of a rank", lambda pid=start["pid"]: not runs(pid), NOTICED)
    cluster.hosts[1].plug("up")
    assert [one.wait() for one in jobs] == [0, 0], told(jobs)
    noticed = "3 averages in a row" if mode == "cpu-cadence" else "has lost the other ranks"
    assert noticed in first.output()
    again = first.starts(2)[2:]
    assert len(again) == 2
    assert all(start["epochs"] >= 2 for start in again)
    assert first.result(0)["params"] == first.result(1)["params"]
    assert_proven(first, 6)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_when_a_host_dies_the_other_goes_on_alone(cluster: Cluster, dies: int) -> None:
    """Whether rank 0 was on it or not."""
    cluster.meets_on = 1 - dies
    options = {"ddp": {"policy": "cadence"}, "epochs": 5, "batch_ms": 10}
    jobs = [cluster.start(number, options) for number in (0, 1)]
    alive = jobs[1 - dies]
    alive.wait_for("epoch 2", lambda: min(alive.epoch(0), alive.epoch(1)) >= 2)
    jobs[dies].kill()
    assert alive.wait() == 0, told(jobs)
    (start,) = alive.starts(1)
    assert start["host"] == cluster.hosts[1 - dies].name
    assert start["epochs"] >= 2
    assert_proven(alive, 5)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [0, 1])
def test_a_host_that_comes_back_joins_the_training_again(cluster: Cluster, dies: int) -> None:
    cluster.meets_on = 1 - dies
    options = {"ddp": {"policy": "cadence"}, "epochs": 15, "batch_ms": 20}
    jobs = [cluster.start(number, options) for number in (0, 1)]
    alive = jobs[1 - dies]
    alive.wait_for("epoch 2", lambda: min(alive.epoch(0), alive.epoch(1)) >= 2)
    jobs[dies].kill()
    alive.wait_for("the restart", lambda: alive.starts(1))
    alive.wait_for("another epoch", lambda: alive.epoch(0) >= 3)
    jobs[dies] = cluster.start(dies, options)
    assert [one.wait() for one in jobs] == [0, 0], told(jobs)
    again = alive.starts(2)[2:]
    assert len(again) == 2, alive.read("starts")
    assert all(start["epochs"] >= 3 for start in again)
    assert alive.result(0)["params"] == alive.result(1)["params"]
    assert_proven(alive, 15)
