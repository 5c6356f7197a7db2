"""What happens to a training when ranks die, stop for a while, or fail."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from flodl import checkpoint_metadata
from flodl.train.run.verify import verify_run
from tests.flodl.distributed.jobs import job
from tests.ports import kept_port

AGAIN = 120
"""Seconds after which a training that does not go on counts as stuck.

That it goes on within 30 seconds is measured by ``python -m benchmarks.kills`` on an idle machine:
beside other tests, importing torch alone may take ten.
"""


@pytest.mark.case("distributed", 43)
@pytest.mark.parametrize(
    "policy",
    [
        "cadence",
        pytest.param("async", marks=pytest.mark.slow),
        pytest.param("sync", marks=pytest.mark.slow),
    ],
)
def test_a_killed_rank_costs_no_sample_and_the_training_goes_on(
    tmp_path: Path, policy: str
) -> None:
    ddp = {"policy": policy, "simulate_ms": [8.0, 20.0]}
    with job(
        tmp_path, {"ddp": ddp}, "--standalone", "--nproc-per-node=2", "--max-restarts=1"
    ) as training:
        os.kill(training.rank_in_epoch(1, 2), signal.SIGKILL)
        training.wait_for("the restart", lambda: training.read("pid-0-1"), AGAIN)
        assert training.wait() == 0, training.output()
        assert "the last checkpoint is" not in training.output()
        assert training.result(0)["epochs"] == [0, 1, 2, 3, 4]
        found = verify_run(training.run)
        assert found.proven, found
        assert found.complete_epochs == 5
        assert training.result(0)["params"] == training.result(1)["params"]


@pytest.mark.case("distributed", 44)
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_without_restarts_a_killed_rank_is_named_and_the_last_checkpoint_loads(
    tmp_path: Path, rank: int
) -> None:
    ddp = {"policy": "cadence", "simulate_ms": [8.0, 20.0]}
    with job(
        tmp_path, {"ddp": ddp}, "--standalone", "--nproc-per-node=2", "--max-restarts=0"
    ) as training:
        os.kill(training.rank_in_epoch(rank, 2), signal.SIGKILL)
        assert training.process.wait(timeout=AGAIN) != 0
        told = training.output()
        assert f"rank      : {rank}" in told
        assert "SIGKILL" in told
        assert f"; the last checkpoint is runs/{training.run.name}/last.fdl\n" in told
        assert int(checkpoint_metadata(training.run / "last.fdl")["epoch"]) >= 1


@pytest.mark.slow
@pytest.mark.case("distributed", 45)
def test_a_rank_that_is_stopped_for_a_while_is_skipped_and_comes_back(tmp_path: Path) -> None:
    ddp = {
        "mode": "cpu-cadence",
        "snapshot_timeout": 4,
        "simulate_ms": [8.0, 20.0],
        "max_anchor": 10,
    }
    with job(tmp_path, {"ddp": ddp, "n": 1600}) as training:
        stopped = training.rank_in_epoch(1, 1)
        os.kill(stopped, signal.SIGSTOP)
        training.wait_for("a skip", lambda: "an average is skipped" in training.output(), AGAIN)
        os.kill(stopped, signal.SIGCONT)
        assert training.wait() == 0, training.output()
        one, two = training.result(0), training.result(1)
        assert one["aborts"] == two["aborts"] >= 1
        assert one["epochs"] == [0, 1, 2, 3, 4]
        assert verify_run(training.run).proven


@pytest.mark.slow
@pytest.mark.case("distributed", 46)
def test_a_rank_that_never_comes_back_is_replaced_after_three_skips(tmp_path: Path) -> None:
    ddp = {"mode": "cpu-cadence", "snapshot_timeout": 1, "simulate_ms": [8.0, 20.0]}
    with job(
        tmp_path, {"ddp": ddp}, "--standalone", "--nproc-per-node=2", "--max-restarts=1"
    ) as training:
        os.kill(training.rank_in_epoch(1, 1), signal.SIGSTOP)
        # The launcher waits half a minute for a process that does not answer.
        assert training.process.wait(timeout=90) == 0, training.output()
        assert "3 averages in a row" in training.output()
        assert training.result(0)["epochs"] == [0, 1, 2, 3, 4]
        assert verify_run(training.run).proven


@pytest.mark.slow
def test_a_rank_asked_to_end_does_not_wait_for_one_that_was_killed(tmp_path: Path) -> None:
    ddp = {"mode": "cpu-cadence", "snapshot_timeout": 1, "simulate_ms": [8.0, 20.0]}
    with job(
        tmp_path, {"ddp": ddp}, "--standalone", "--nproc-per-node=2", "--max-restarts=0"
    ) as training:
        os.kill(training.rank_in_epoch(1, 1), signal.SIGKILL)
        assert training.process.wait(timeout=AGAIN) != 0
        told = training.output()
        assert "rank 0 was asked to end, and another rank did not come to the average" in told
        assert "averages in a row" not in told


@pytest.mark.case("distributed", 47)
def test_the_traceback_of_a_rank_that_fails_is_what_the_launcher_shows(tmp_path: Path) -> None:
    options = {"ddp": {}, "raise_on_rank": 1}
    with job(tmp_path, options) as training:
        assert training.wait() != 0
        assert "this rank has lost its way" in training.output()


@pytest.mark.case("distributed", 48)
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    options = {"ddp": {"policy": "cadence"}, "die_at_checkpoint": 3}
    with job(
        tmp_path, options, "--standalone", "--nproc-per-node=2", "--max-restarts=1"
    ) as training:
        assert training.wait() == 0, training.output()
        assert training.result(0)["epochs"] == [0, 1, 2, 3, 4]
        assert verify_run(training.run).proven


@pytest.mark.slow
@pytest.mark.case("distributed", 50)
def test_two_nodes_on_one_host_agree_with_one(tmp_path: Path) -> None:
    options = {
        "ddp": {"policy": "cadence", "speeds": [2.5, 1.0]},
        "deterministic": True,
        "epochs": 2,
    }
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    with job(alone, options) as single:
        assert single.wait() == 0, single.output()
        expected = single.result(0)["params"]
    common = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=two")
    with ExitStack() as stack:
        endpoint = f"--rdzv-endpoint=127.0.0.1:{stack.enter_context(kept_port())}"
        first, second = (
            stack.enter_context(job(together, options, *common, endpoint)) for _ in range(2)
        )
        assert first.wait() == 0, first.output()
        assert second.wait() == 0, second.output()
        for rank in (0, 1):
            for mine, theirs in zip(first.result(rank)["params"], expected, strict=True):
                assert mine == pytest.approx(theirs, abs=1e-6)
