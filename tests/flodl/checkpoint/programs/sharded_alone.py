"""What a process that shards a model alone may do with it; says the names of the checks that held.

A program of its own: torch keeps what it has learned of DTensors for each thread, process groups
included, and a process that is forked from such a thread later hangs while it puts that away.

Usage: python sharded_alone.py FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from flodl import FlowBuilder
from flodl.hf.weights.writing import saved_tensors
from flodl.train.parts import assemble
from flodl.train.settings import TrainingPlan
from flodl.train.step import EagerEngine, StepSettings, make_engine

warnings.simplefilter("ignore")


def auto_leaves_a_sharded_model_as_it_is(mesh):
    model = FlowBuilder.from_(nn.Linear(4, 3)).build()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = make_engine(
        "auto",
        model,
        optimizer,
        StepSettings(train_fn=lambda m, b: m(b[0]).sum()),
        device=torch.device("cpu"),
        total_steps=1000,
    )
    assert isinstance(engine, EagerEngine)
    engine.close()


def ranks_that_average_refuse_a_sharded_model(mesh):
    def factory(_):
        model = FlowBuilder.from_(nn.Linear(4, 3)).build()
        fully_shard(model, mesh=mesh)
        return model

    plan = TrainingPlan(
        model_factory=factory,
        optimizer_factory=lambda ps: torch.optim.SGD(ps, lr=0.1),
        train_fn=lambda m, b: m(b[0]).sum(),
        dataset=torch.utils.data.TensorDataset(torch.zeros(8, 4)),
        batch_size=4,
        num_epochs=1,
    )
    with pytest.raises(ValueError, match=r"call \.sharded\(\) on the builder"):
        assemble(plan, torch.device("cpu"), 2)


def an_export_names_what_it_cannot_read(mesh):
    freed = nn.Linear(4, 3)
    freed.get_parameter("weight").untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"^weight has no memory"):
        saved_tensors(freed)
    model = nn.Linear(4, 3)
    fully_shard(model, mesh=mesh)
    with pytest.raises(ValueError, match=r"^weight is sharded over processes.*save_checkpoint"):
        saved_tensors(model)


CHECKS = (
    auto_leaves_a_sharded_model_as_it_is,
    ranks_that_average_refuse_a_sharded_model,
    an_export_names_what_it_cannot_read,
)

if __name__ == "__main__":
    store = Path(sys.argv[1]) / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    for check in CHECKS:
        check(init_device_mesh("cpu", (1,)))
        print(check.__name__, flush=True)
    dist.destroy_process_group()
