"""Real runs, in this process and on ranks."""

import json
import math

import pytest

from flodl.ddp_bench.cell import MODES, Cell
from flodl.ddp_bench.data import load
from flodl.ddp_bench.evaluation import Evaluation
from flodl.ddp_bench.harness import run_cell
from flodl.ddp_bench.models import TASKS
from flodl.ddp_bench.records import RunFolder
from flodl.ddp_bench.sweep import sweep
from flodl.errors import DataError
from flodl.monitor import EventKind, Timeline
from flodl.ranks.group import LocalGroup
from flodl.ranks.settings import DdpRunConfig
from tests.flodl.ddp_bench import figures
from tests.rows import each_row


def cell(tmp_path, model, mode, **values):
    defaults = {
        "epochs": 1,
        "batches": 5,
        "batch_size": 4,
        "lr": TASKS[model].lr,
        "source": "synthetic",
        "ranks": 2,
    }
    return Cell(model=model, mode=mode, folder=tmp_path / model / mode, **(defaults | values))


def records(cells):
    outcomes = sweep(cells)
    assert [one.reason for one in outcomes] == [""] * len(cells)
    return {(one.cell.model, one.cell.mode): one.record for one in outcomes}


def check_all(found):
    for (model, mode), record in found.items():
        assert all(math.isfinite(row.loss) for row in record.rows), (model, mode)
        assert math.isfinite(record.eval), (model, mode)
        assert record.evaluated == 22, (model, mode)
        if not mode.startswith("torch"):
            trained = record.rows[-1].batches
            wanted = 5 * len(trained) if mode == "sync" else 5
            assert sum(trained) == wanted, (model, mode)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_spawns")
@pytest.mark.case("distributed", 60)
def test_a_model_trains_in_every_mode(tmp_path):
    model = "conv-ae"
    found = records([cell(tmp_path, model, mode) for mode in MODES])
    assert len(found) == len(MODES)
    check_all(found)
    # The same mathematics: all ranks compute the one batch of a single process. (The model has
    # no batch normalisation over a part of the batch.)
    alone, together = found[model, "solo-0"], found[model, "sync"]
    assert together.eval == pytest.approx(alone.eval, rel=1e-5)
    for backend in ("nccl", "cpu"):
        timeline = Timeline.load(tmp_path / model / f"{backend}-cadence" / "timeline.json")
        assert {event.rank for event in timeline.events} == {0, 1}
        assert any(event.kind is EventKind.PLAN for event in timeline.events)
    names = {path.name for path in (tmp_path / model / "cpu-async").iterdir()}
    files = ("metrics.json", "timeline.csv", "timeline.html", "timeline.json", "training.log")
    assert names == set(files)


@pytest.mark.slow
@pytest.mark.case("distributed", 60)
def test_every_model_trains_in_every_mode(tmp_path):
    check_all(records([cell(tmp_path, model, mode) for model in TASKS for mode in MODES]))


@pytest.mark.case("distributed", 61)
def test_the_whole_test_set_is_evaluated(tmp_path):
    data = load("mnist", "synthetic", tmp_path)
    group = LocalGroup()
    judge = Evaluation(TASKS["logistic"], data, group, group.device)
    model = TASKS["logistic"].build()
    figure = judge(model)
    assert judge.samples == 10_000
    images, labels = data.test.tensors
    hits = (model(images.float() / 255).argmax(dim=1) == labels).sum()
    assert figure == pytest.approx(int(hits) / 10_000)
    assert model.training


@pytest.mark.case("distributed", 61)
def test_ranks_together_judge_as_one_alone(tmp_path):
    class Half(LocalGroup):
        """One of two ranks; the other has told its row before."""

        def __init__(self, rank, other=None):
            super().__init__()
            self.rank, self.world_size, self.other = rank, 2, other

        def gather(self, values):
            self.row = [float(value) for value in values]
            return [self.row, self.other or [0.0] * len(values)]

    data = load("mnist", "packaged", tmp_path)
    task, group = TASKS["mlp"], LocalGroup()
    model = task.build()
    alone = Evaluation(task, data, group, group.device)
    second = Half(1)
    Evaluation(task, data, second, group.device)(model)
    together = Evaluation(task, data, Half(0, second.row), group.device)
    assert together(model) == pytest.approx(alone(model))
    assert together.samples == alone.samples == 359


def test_modes_of_one_device_differ_only_in_their_pace(tmp_path):
    simulated = DdpRunConfig(simulate_ms=(2, 6))
    found = records([cell(tmp_path, "mlp", f"solo-{n}", ddp=simulated) for n in (0, 1)])
    first, second = found["mlp", "solo-0"], found["mlp", "solo-1"]
    assert first.rows[0].loss == second.rows[0].loss
    assert first.eval == second.eval
    assert first.seconds >= 0.010
    assert second.seconds >= 0.030
    assert first.threads == 1


def test_a_run_that_fails_does_not_keep_the_next_from_running(tmp_path):
    first, second = sweep(
        [
            cell(tmp_path, "mlp", "solo-0", batch_size=10**6),
            cell(tmp_path, "logistic", "solo-0"),
        ]
    )
    assert "do not fill a batch of" in first.reason
    assert first.record is None
    assert second.record is not None
    log = (tmp_path / "mlp" / "solo-0" / "training.log").read_text()
    assert "# failed: DataError" in log


@each_row("mode", ["torch-ddp", "torch-postlocalsgd"])
def test_data_without_a_batch_for_each_rank_is_refused_by_the_modes_of_torch(mode, tmp_path):
    group = LocalGroup()
    group.world_size = 2
    with pytest.raises(DataError, match="1 batch of an epoch and 2 ranks"):
        run_cell(cell(tmp_path, "logistic", mode, batches=1), group)


def test_a_rank_that_fails_after_the_last_run_takes_no_result_away(tmp_path, monkeypatch, capsys):
    def launch(cells):
        for one in cells:
            RunFolder(one.folder).begin([])
            RunFolder(one.folder).finish(figures.record())
        return "rank 1 ended with signal SIGSEGV"

    monkeypatch.setattr("flodl.ddp_bench.sweep._launch", launch)
    (found,) = sweep([cell(tmp_path, "mlp", "cpu-sync")])
    assert found.record is not None
    assert "rank 1 ended with signal SIGSEGV" in capsys.readouterr().err


def test_the_log_says_that_data_is_not_real_and_the_pace_declared(tmp_path):
    records([cell(tmp_path, "mlp", "solo-0", ddp=DdpRunConfig(simulate_ms=(1, 1)))])
    log = (tmp_path / "mlp" / "solo-0" / "training.log").read_text()
    assert "# synthetic data" in log
    assert "# the pace of the ranks is declared" in log
    form = json.loads((tmp_path / "mlp" / "solo-0" / "metrics.json").read_text())
    assert form["data"] == "synthetic"
