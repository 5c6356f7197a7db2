"""Controls: averaging that is broken on purpose, and whether the analysis notices."""

import json
import sys

import pytest
import torch

from flodl.ddp_bench import controls
from flodl.ddp_bench.__main__ import Args, main
from flodl.ddp_bench.analyze import averaging_fault, shortage
from flodl.ddp_bench.comparison import control_failures, table_of
from flodl.ddp_bench.evaluation import _distance, _fingerprint
from flodl.ddp_bench.summary import FiledRun, summarise
from flodl.ranks.averaging.average import ParameterAverager
from tests.flodl.ddp_bench.figures import record, row
from tests.ports import kept_port
from tests.rows import each_row

QUICK = "solo-0,cpu-cadence,control-unaveraged,control-reversed"
BRIEF = ["--model", "mlp", "--data", "packaged", "--epochs", "3", "--batch-size", "16"]
BRIEF += ["--sim-ms", "1,2.5"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flodl.ddp_bench.request.usable_gpus", list)
    return tmp_path


def run(mode, figure, *, seconds=1.0, apart=None, seed=42, data="packaged"):
    several = not mode.startswith("solo")
    rows = (row(eval=figure, train_ms=seconds * 1000, ranks_apart=apart),)
    config = {"seed": seed, "ddp": {"simulate_ms": [6, 15]}}
    devices = ("CPU", "CPU") if several else ("CPU",)
    one = record(mode=mode, rows=rows, config=config, devices=devices, data=data)
    return FiledRun(None, one, None)


def failures(*runs):
    return list(control_failures(summarise(runs)))


@pytest.mark.slow
def test_broken_averaging_is_told_apart_from_healthy(here, capsys):
    assert main(Args.try_parse_from([*BRIEF, "--mode", QUICK])) == 0
    said = capsys.readouterr().out
    assert "BROKEN: the ranks hold different models" in said
    assert "BROKEN: it has not learned" in said

    def epochs(mode):
        return json.loads((here / "runs/mlp" / mode / "metrics.json").read_text())["rows"]

    assert all(one["ranks_apart"] < 1e-6 for one in epochs("cpu-cadence"))
    assert all(one["ranks_apart"] > 1e-2 for one in epochs("control-unaveraged"))
    assert all(one["ranks_apart"] < 1e-6 for one in epochs("control-reversed"))
    assert all(one["ranks_apart"] is None for one in epochs("solo-0"))
    assert epochs("control-reversed")[-1]["eval"] < 0.5 < epochs("cpu-cadence")[-1]["eval"]


@pytest.mark.usefixtures("here")
def test_a_control_that_is_not_noticed_fails_the_call(capsys, monkeypatch):
    # With healthy averages a control is what the analysis must not let pass.
    monkeypatch.setattr("flodl.ddp_bench.__main__.sweep", undisturbed)
    assert main(Args.try_parse_from([*BRIEF, "--mode", QUICK])) == 1
    told = capsys.readouterr().err
    assert "mlp/control-unaveraged: its averaging is broken on purpose" in told
    assert "mlp/control-reversed: its averaging is broken on purpose" in told


def undisturbed(cells):
    from flodl.ddp_bench.sweep import Outcome

    figures = {cell.mode: run(cell.mode, 0.95, apart=1e-9).record for cell in cells}
    return [Outcome(cell, figures[cell.mode]) for cell in cells]


def test_a_healthy_mode_with_a_fault_fails_where_controls_are_run():
    sound = (run("solo-0", 0.95), run("control-unaveraged", 0.94, apart=0.3))
    assert failures(*sound, run("cpu-cadence", 0.94, apart=1e-8)) == []
    assert failures(*sound, run("cpu-cadence", 0.94, apart=1e-3)) == [
        "mlp/cpu-cadence: averaging is broken: the ranks hold different models: 0.001 of their "
        "norm apart"
    ]
    assert failures(run("solo-0", 0.95), run("cpu-cadence", 0.1, apart=1e-3)) == []


def test_a_control_needs_one_device_alone_beside_it():
    (told,) = failures(run("control-unaveraged", 0.9, apart=0.3))
    assert "--mode solo-0,cpu-cadence,control-unaveraged" in told


@each_row(
    ("apart", "figure", "told"),
    [
        (None, 0.9, ""),
        (1e-5, 0.9, ""),
        (2e-4, 0.9, "different models"),
        (sys.float_info.max, 0.9, "different models"),
        (0.0, 0.70, "has not learned"),
        (0.0, 0.72, ""),
        (0.0, float("nan"), "has not learned"),
    ],
)
def test_faults_of_an_averaging(apart, figure, told):
    found = averaging_fault(apart, figure, 0.95, higher_is_better=True)
    assert told in found
    assert bool(found) == bool(told)


def test_a_verdict_needs_seeds_and_seconds():
    assert shortage(3, 10.0) == ""
    assert shortage(1, 60.0) == "1 of 3 seeds"
    assert shortage(2, 4.0) == "2 of 3 seeds, 4.0 of 10 s of training"
    short = [run(mode, 0.95, apart=0.0) for mode in ("solo-0", "cpu-cadence")]
    shown = "\n".join(table_of(*summarise(short)))
    assert "not enough data" in shown
    assert "--seeds 3 --epochs 5" in shown
    long = [
        run(mode, 0.95, apart=0.0, seconds=4.0 if mode == "solo-0" else 3.4, seed=seed)
        for mode in ("solo-0", "cpu-cadence")
        for seed in (1, 2, 3)
    ]
    shown = "\n".join(table_of(*summarise(long)))
    assert "not enough data" not in shown
    assert "FAIR" in shown


def test_the_distance_of_models_is_that_of_their_values():
    torch.manual_seed(1)
    first = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40))
    second = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40))
    second.load_state_dict(first.state_dict())
    assert _distance([_fingerprint(first), _fingerprint(second)]) == 0
    second[1].running_mean += 0.01  # a buffer counts as well
    with torch.no_grad():
        norm = sum(float((one**2).sum()) for one in first.parameters())
        norm += sum(float((one**2).sum()) for one in first.buffers() if one.is_floating_point())
    told = _distance([_fingerprint(first), _fingerprint(second)])
    assert told == pytest.approx(0.01 * 40**0.5 / norm**0.5, rel=0.6)
    second[0].weight.data[0, 0] = torch.nan
    assert _distance([_fingerprint(first), _fingerprint(second)]) == sys.float_info.max


def test_averaging_is_whole_again_behind_a_control():
    genuine = ParameterAverager.average
    for mode in controls.CONTROLS:
        with controls.broken_averaging(mode):
            assert ParameterAverager.average is not genuine
        assert ParameterAverager.average is genuine
    with controls.broken_averaging("cpu-cadence"):
        assert ParameterAverager.average is genuine


def test_without_network_the_packaged_data_is_named(here, capsys, monkeypatch):
    from dataclasses import replace

    from flodl.ddp_bench import data

    (file, *_) = data._REMOTE["mnist"]
    with kept_port() as port:
        away = replace(file, folders=(f"http://127.0.0.1:{port}/",))
        monkeypatch.setitem(data._REMOTE, "mnist", (away,))
        words = ["--model", "mlp", "--mode", "solo-0", "--batches", "1"]
        assert main(Args.try_parse_from(words)) == 2
    said = capsys.readouterr().err
    assert "--data packaged" in said
    assert file.name in said
    assert not (here / "runs").exists()
