from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from flodl.errors import DistributedError
from flodl.ranks.group import Group, LocalGroup
from flodl.ranks.launch.join import DEVICE_VARIABLE, join
from flodl.ranks.launch.launcher import detect, first_host
from tests.flodl.distributed.ranks import Ranks
from tests.ports import kept_port
from tests.rows import each_row

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "night",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train.sh",
}
INDEXED = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "job-0.job"}


def test_an_ordinary_environment_is_no_launch() -> None:
    assert detect({}) is None
    assert detect({"MASTER_ADDR": "10.0.0.1", "HOME": "/root"}) is None


def test_torchrun_is_read_completely() -> None:
    found = detect(TORCHRUN)
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (5, 8, 1, 4)
    assert (found.node, found.run_id, found.restart, found.source) == (1, "night", 2, "torchrun")
    assert (found.address, found.port) == ("10.0.0.1", 29400)


@each_row(("limit", "left"), [("3", 1), ("2", 0), ("0", 0), ("", 0)])
def test_the_restarts_that_torchrun_has_left_are_counted(limit: str, left: int) -> None:
    found = detect({**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": limit})
    assert found is not None
    assert found.restarts_left == left


def test_a_run_id_that_torchrun_made_up_for_everybody_is_no_name() -> None:
    found = detect({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"})
    assert found is not None
    assert found.run_id == ""


def test_a_pytorchjob_has_one_process_per_pod() -> None:
    found = detect({"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "job-0", "MASTER_PORT": "1234"})
    assert found is not None
    assert (found.rank, found.local_rank, found.local_world_size, found.node) == (2, 0, 1, 2)


def test_srun_is_read_completely() -> None:
    found = detect(SLURM)
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (3, 4, 1, 2)
    assert (found.node, found.run_id, found.restart, found.source) == (
        1,
        "slurm-123456.0",
        0,
        "SLURM",
    )
    assert found.address == "gpu07"
    assert 15000 <= found.port < 30000
    other = detect({**SLURM, "SLURM_JOB_ID": "123457"})
    assert other is not None
    assert other.port != found.port


def test_an_address_of_the_users_own_wins_over_the_node_list() -> None:
    found = detect({**SLURM, "MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "4711"})
    assert found is not None
    assert (found.address, found.port) == ("10.1.1.1", 4711)


def test_torchrun_inside_of_a_slurm_job_wins() -> None:
    found = detect({**SLURM, **TORCHRUN})
    assert found is not None
    assert found.source == "torchrun"


@each_row(
    "change",
    [
        {"SLURM_JOB_NAME": "bash"},
        {"SLURM_JOB_NAME": "interactive"},
        {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"SLURM_STEP_ID": "4294967291"},
    ],
    ids=["shell", "interactive", "one task", "one task in the step", "batch script"],
)
def test_what_srun_did_not_start_in_numbers_is_no_launch(change: dict[str, str]) -> None:
    assert detect({**SLURM, **change}) is None


@each_row(
    ("nodes", "host"),
    [
        ("gpu07", "gpu07"),
        ("a,b,c", "a"),
        ("a b", "a"),
        ("host[5-9]", "host5"),
        ("host[005,010-020],other", "host005"),
        ("rack[1-2]n[01-04]", "rack1n01"),
        ("compute-0-[0,9]", "compute-0-0"),
        ("n[3].example.org", "n3.example.org"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_an_indexed_job_of_kubernetes() -> None:
    found = detect(INDEXED)
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank, found.node) == (2, 3, 0, 2)
    assert (found.address, found.source) == ("job-0.job", "Kubernetes")


def test_an_indexed_job_that_shares_nothing_is_no_launch() -> None:
    assert detect({"JOB_COMPLETION_INDEX": "2"}) is None


@each_row(
    ("environ", "names"),
    [
        ({"RANK": "0"}, ["WORLD_SIZE"]),
        ({"WORLD_SIZE": "2"}, ["RANK", "WORLD_SIZE"]),
        ({**TORCHRUN, "MASTER_ADDR": ""}, ["MASTER_ADDR"]),
        ({**TORCHRUN, "MASTER_PORT": "many"}, ["MASTER_PORT", "'many'"]),
        ({**TORCHRUN, "RANK": "8"}, ["RANK=8", "WORLD_SIZE=8"]),
        ({**TORCHRUN, "RANK": "-1"}, ["RANK"]),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, ["LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"]),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, ["LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"]),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, ["WORLD_SIZE"]),
        ({**SLURM, "SLURM_PROCID": "4"}, ["SLURM_PROCID=4", "SLURM_NTASKS=4"]),
        ({**SLURM, "SLURM_LOCALID": ""}, ["SLURM_LOCALID"]),
        ({**SLURM, "SLURM_NODELIST": ""}, ["SLURM_NODELIST", "MASTER_ADDR"]),
        ({**SLURM, "WORLD_SIZE": "2"}, ["WORLD_SIZE=2", "SLURM_NTASKS=4"]),
        ({**INDEXED, "MASTER_ADDR": ""}, ["MASTER_ADDR"]),
        ({"JOB_COMPLETION_INDEX": "0", "MASTER_ADDR": "a"}, ["WORLD_SIZE"]),
        ({**INDEXED, "JOB_COMPLETION_INDEX": "3"}, ["JOB_COMPLETION_INDEX=3", "WORLD_SIZE=3"]),
    ],
)
def test_incomplete_and_contradictory_variables_are_named(
    environ: dict[str, str], names: list[str]
) -> None:
    with pytest.raises(DistributedError) as caught:
        detect(environ)
    for name in names:
        assert name in str(caught.value)


def test_one_process_makes_no_process_group() -> None:
    for environ in ({}, {"RANK": "0", "WORLD_SIZE": "1"}):
        group = join(environ, device="cpu")
        assert isinstance(group, LocalGroup)
        assert group.device == torch.device("cpu")
    assert not dist.is_initialized()


def _gather_as_slurm_task(of_test: Group, port: int) -> list[list[float]]:
    rank = of_test.rank
    environ = {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": str(rank),
        "SLURM_NODELIST": "localhost",
        "SLURM_JOB_ID": "7",
        "MASTER_PORT": str(port),
    }
    group = join(environ, device="cpu", sync_timeout=timedelta(seconds=20))
    try:
        return group.gather([float(group.rank), float(group.local_rank)])
    finally:
        group.close()


def test_slurm_tasks_find_each_other_by_the_node_list(ranks: Ranks) -> None:
    with kept_port() as port:
        results = ranks(2, _gather_as_slurm_task, port)
    assert results == [[[0.0, 0.0], [1.0, 1.0]]] * 2


def _gather_after_restart(of_test: Group, port: int, restart: int) -> list[list[float]]:
    rank = of_test.rank
    if restart and rank == 0:
        time.sleep(0.5)
    environ = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    os.environ.update(environ)
    group = join(os.environ, device="cpu", sync_timeout=timedelta(seconds=20))
    try:
        return group.gather([float(group.rank)])
    finally:
        group.close()


@pytest.mark.slow
def test_a_restart_does_not_meet_the_ranks_of_the_start_before(ranks: Ranks) -> None:
    # The launcher keeps its store, where the addresses of the first start remain.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for restart in (0, 1):
        results = ranks(2, _gather_after_restart, store.port, restart)
        assert results == [[[0.0], [1.0]]] * 2


@each_row("text", ["soon", "0", "-3", "nan", "inf"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(text: str) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    with pytest.raises(DistributedError, match=r"FLODL_SYNC_TIMEOUT=.*a number of seconds"):
        join({**environ, "FLODL_SYNC_TIMEOUT": text}, device="cpu")


@each_row("text", ["cuda:1", "-1", "first"])
def test_a_gpu_that_is_no_number_is_refused(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        with pytest.raises(DistributedError, match=r"FLODL_DEVICE=.*the number of a GPU"):
            join({"RANK": "0", "WORLD_SIZE": "1", DEVICE_VARIABLE: text})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_rank_without_a_gpu_of_its_own_is_told_so() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(DistributedError, match="one process per GPU"):
        join({"RANK": "0", "WORLD_SIZE": "1", DEVICE_VARIABLE: str(count)})
