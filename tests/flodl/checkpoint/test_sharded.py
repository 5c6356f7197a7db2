"""Graphs under fully_shard: the file is that of one device, on one rank and on several."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from fdl.base.units import counted
from flodl import FlowBuilder, Trainer
from flodl.checkpoint import load_checkpoint_file, save_checkpoint_file
from flodl.checkpoint.sharded import has_memory
from flodl.checkpoint.snapshot import snapshot
from tests import fork_server
from tests.rows import each_row

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "sharded.py"
ALONE = PROGRAM.with_name("sharded_alone.py")
ROOT = PROGRAM.parents[4]
LAUNCHED = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
"""What torchrun tells the second of two ranks."""


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 2])
def told(request, tmp_path_factory):
    """What each rank of the program says, by rank."""
    ranks = request.param
    folder = tmp_path_factory.mktemp("ranks")
    python = fork_server.torch_program(os.environ)
    with (folder / "log").open("w") as log:
        started = [
            subprocess.Popen(
                [python, str(PROGRAM), str(rank), str(ranks), str(folder)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            for rank in range(ranks)
        ]
        try:
            codes = [process.wait(timeout=240) for process in started]
        finally:
            for process in started:
                process.kill()
    assert codes == [0] * ranks, (folder / "log").read_text()[-5000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def test_the_file_of_a_sharded_graph_is_that_of_the_graph_on_one_device(told):
    for rank in told:
        assert rank["bytes"] == {"model.fdl": True, "model.fdl.gz": True, "stream": True}


def test_every_rank_takes_its_parts_from_the_file_also_after_an_evaluation(told):
    for rank in told:
        assert rank["load"] == {"values": True, "missing": [], "again": True}


def test_a_writer_that_fails_tells_the_others_and_the_next_save_works(told):
    first, *others = [rank["failure"] for rank in told]
    assert "cannot write checkpoint /proc/nowhere/model.fdl" in first["open"]
    assert "no space left" in first["midway"]
    for other in others:
        assert other["open"].startswith("rank 0 could not save checkpoint /proc/nowhere/model.fdl")
        assert "no space left" in other["midway"]


def test_a_save_on_one_rank_alone_is_an_error_that_names_the_others(told):
    if len(told) == 1:
        assert told[0]["alone"] is None
        return
    assert "rank 1 did not come to save within 0.3 s" in told[0]["alone"]["error"]
    assert "Call the save on every rank, not only where rank == 0" in told[0]["alone"]["error"]
    for rank in told:
        assert rank["alone"]["file"] is False
        assert rank["alone"]["later"] is True


def test_a_snapshot_has_whole_tensors_on_the_first_rank(told):
    assert [rank["snapshot"]["tensors"] for rank in told] == [10, 0][: len(told)]
    assert all(rank["snapshot"]["values"] for rank in told)


def test_an_optimizer_goes_on_from_its_file(told):
    assert all(rank["optimizer"] for rank in told)


@pytest.mark.parametrize("kind", ["training", "average"])
def test_a_training_is_resumed_exactly(told, kind):
    assert told[0][kind]["files"] == ["best.fdl", "last.fdl", "model.fdl"]
    assert told[0][kind]["last"] is True
    steps = 24 // len(told) // 4  # of an epoch
    assert told[0][kind]["trace"] == [True, steps + 1, 3 * steps]
    for rank in told:
        assert (rank[kind]["losses"], rank[kind]["weights"], rank[kind]["buffers"]) == (True,) * 3


def test_every_rank_continues_with_its_own_state(told):
    assert all(rank["own"]["same"] for rank in told)
    steps = 3 * 24 // len(told) // 4
    assert [rank["own"]["counts"] for rank in told] == [steps * (1 + n) for n in range(len(told))]


def test_modes_and_the_state_of_added_groups_come_back_by_name(told):
    for rank in told:
        assert rank["modes"] == {"same": True, "modes": [True, True, False, False, True, True]}


def test_an_evaluation_that_is_not_finite_is_never_the_best_and_ends_the_patience(told):
    stopped = {"stopped": "error is nan, which is no improvement", "epochs": 4}
    assert [rank["odd"] for rank in told] == [
        {**stopped, "best": None if number else "2"} for number in range(len(told))
    ]


def test_a_signal_to_one_rank_saves_the_training_of_all_ranks(told):
    """All stop after the same step, and continue to the same bits."""
    ranks = len(told)
    late = int(ranks > 1)  # several learn of it one step later; one stops at once
    steps = 24 // ranks // 4 + 1 + late
    for rank in told:
        assert rank["signal"]["steps"] == steps
        assert rank["signal"]["weights"]
    said = told[0]["signal"]["said"]
    done = (
        f"stopped after 1 complete epoch and {counted(1 + late, 'step')}; the last good checkpoint"
    )
    assert said.startswith(done)


def test_what_people_and_callbacks_ask_for_reaches_all_ranks(told):
    first = told[0]["acts"]
    assert all(rank["acts"]["rates"] == first["rates"] for rank in told)
    assert all(first["rates"])
    assert sum(first["rates"]) == first["steps"] == 6 * 24 // len(told) // 4
    assert told[-1]["acts"]["stopped"] == "enough"
    if len(told) > 1:
        assert first["stopped"] == "another rank stopped it"


def test_a_process_that_shards_a_model_alone_is_told_what_cannot_be(tmp_path):
    done = fork_server.python(str(ALONE), str(tmp_path), timeout=120, torch=True, abrupt=True)
    assert done.returncode == 0, done.stderr[-5000:]
    # gloo of torch 2.8 prints a line about each group.
    said = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    assert said == [
        "auto_leaves_a_sharded_model_as_it_is",
        "ranks_that_average_refuse_a_sharded_model",
        "an_export_names_what_it_cannot_read",
    ]


def test_a_sharded_training_is_alone_on_each_rank_of_a_launcher(monkeypatch):
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    inputs = torch.randn(8, 4)
    handle = (
        Trainer.builder(
            lambda _: FlowBuilder.from_(nn.Linear(4, 3)).build(),
            lambda ps: torch.optim.SGD(ps, lr=0.1),
            lambda model, batch: model(batch[0]).square().mean(),
        )
        .dataset(torch.utils.data.TensorDataset(inputs))
        .batch_size(4)
        .num_epochs(1)
        .sharded()
        .run()
    )
    assert handle.world_size == 1


# --- Tensors without values -----------------------------------------------------------------


def freed(model):
    """Free the memory of a parameter, as FSDP does with those it has gathered."""
    model.get_parameter("weight").untyped_storage().resize_(0)
    return model


def test_a_parameter_whose_memory_was_freed_is_an_error_that_names_it(tmp_path):
    model = freed(nn.Linear(4, 3))
    for action in (
        lambda: save_checkpoint_file(tmp_path / "model.fdl", model.named_parameters(), []),
        lambda: snapshot(dict(model.named_parameters())),
    ):
        with pytest.raises(ValueError, match=r"^weight has no memory.*reshard"):
            action()
    assert list(tmp_path.iterdir()) == []
    whole = nn.Linear(4, 3)
    save_checkpoint_file(tmp_path / "model.fdl", whole.named_parameters(), [])
    with pytest.raises(ValueError, match=r"^weight has no memory.*reshard"):
        load_checkpoint_file(tmp_path / "model.fdl", model.named_parameters(), [])


def test_a_parameter_on_the_meta_device_is_an_error_that_names_it(tmp_path):
    graph = FlowBuilder.from_(nn.Linear(4, 3, device="meta")).tag("enc").build()
    for action in (
        lambda: graph.save_checkpoint(tmp_path / "model.fdl"),
        graph.snapshot_cpu,
    ):
        with pytest.raises(ValueError, match=r"^enc[/.]weight is on the meta device.*to_empty"):
            action()
    assert list(tmp_path.iterdir()) == []


@each_row("view", [lambda t: t, lambda t: t.t(), lambda t: t[:, 1:]])
def test_a_tensor_whose_storage_is_one_byte_short_has_no_memory(view):
    whole = torch.zeros(2, 3)
    tensor = view(whole)
    assert has_memory(tensor)
    whole.untyped_storage().resize_(23)
    assert not has_memory(tensor)
