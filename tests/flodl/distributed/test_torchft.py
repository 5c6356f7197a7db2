"""The outer optimizer does what DiLoCo of torchft does on two real replicas."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.virtual_ranks_group import Meeting, VirtualGroup
from flodl import Nesterov
from flodl.ranks.averaging.average import ParameterAverager
from flodl.ranks.settings import Backend
from tests.flodl.distributed.programs.torchft_diloco import (
    EVERY,
    LOCAL,
    STEPS,
    adamw,
    batches,
    network,
    step,
)

PROGRAM = Path(__file__).parent / "programs/torchft_diloco.py"


def theirs(folder: Path) -> list[list[Tensor]]:
    """Train two replicas of torchft, each a process of its own; return the weights of both."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(bind=f"{LOCAL}:0", min_replicas=2)
    address = f"http://{LOCAL}:{lighthouse.address().rsplit(':', 1)[1]}"
    files = [folder / f"{replica}.pt" for replica in range(2)]
    with ExitStack() as stack:
        stack.callback(lighthouse.shutdown)
        processes = []
        for replica, file in enumerate(files):
            argv = [sys.executable, str(PROGRAM), str(replica), address, str(file)]
            process = stack.enter_context(
                subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert "done\n" in process.stdout
        for process in processes:
            process.communicate("\n", timeout=120)
    return [torch.load(file) for file in files]


def ours() -> list[list[Tensor]]:
    """Train two ranks with our averages and our outer optimizer."""
    meeting = Meeting(2, nested=True)
    models = [network() for _ in range(2)]
    optimizers = [adamw(model) for model in models]
    averagers = [
        ParameterAverager(
            model, VirtualGroup(meeting, rank), Backend.NCCL, outer=Nesterov(0.7, 0.9)
        )
        for rank, model in enumerate(models)
    ]
    data = [batches(rank) for rank in range(2)]
    for number in range(STEPS):
        for rank in range(2):
            step(models[rank], optimizers[rank], data[rank][number])
        if (number + 1) % EVERY == 0:
            meeting.together(lambda rank: averagers[rank].average(8))
    meeting.close()
    return [[parameter.detach() for parameter in model.parameters()] for model in models]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torchft") is None, reason="needs the package torchft")
def test_two_replicas_of_torchft_end_with_the_same_weights(tmp_path: Path) -> None:
    start = [parameter.detach() for parameter in network().parameters()]
    for own, other in zip(ours(), theirs(tmp_path), strict=True):
        for one, two, before in zip(own, other, start, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
            assert (one - before).abs().max() > 0.01
