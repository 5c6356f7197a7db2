"""From the words of a command line to the runs that follow, and what each run records."""

import json
import time
from pathlib import Path

import pytest

from fdl.manifest.models import SECTIONS
from flodl.ddp_bench.__main__ import Args, main, request_of
from flodl.ddp_bench.cell import MODES, starting_rate
from flodl.ddp_bench.models import TASKS
from flodl.ddp_bench.request import cells_of
from tests.rows import each_row

PRESETS = (
    "quick",
    "full-sweep",
    "solo-0",
    "solo-1",
    "nccl-async",
    "nccl-cadence",
    "validate",
    "report",
)

SAMPLES = {
    "mode": ["--mode", "cpu-async"],
    "policy": ["--policy", "async"],
    "backend": ["--backend", "cpu"],
    "anchor": ["--anchor", "7"],
    "max_anchor": ["--max-anchor", "50"],
    "overhead_target": ["--overhead-target", "0.2"],
    "divergence_threshold": ["--divergence-threshold", "0.1"],
    "no_divergence_guard": ["--no-divergence-guard"],
    "max_batch_diff": ["--max-batch-diff", "0"],
    "max_overshoot": ["--max-overshoot", "0"],
    "max_grad_norm": ["--max-grad-norm", "1"],
    "snapshot_timeout": ["--snapshot-timeout", "2"],
    "checkpoint_every": ["--checkpoint-every", "1"],
    "progressive": ["--progressive", "false"],
    "speed_hint": ["--speed-hint", "1:2.5"],
    "partition_ratios": ["--partition-ratios", "0.7,0.3"],
    "lr_scale_ratio": ["--lr-scale-ratio", "0.5"],
    "timeline": ["--timeline"],
    "ranks": ["--ranks", "3"],
    "nodes": ["--nodes", "1"],
    "rdzv": ["--rdzv", "host:29400"],
    "max_restarts": ["--max-restarts", "0"],
    "simulate_ms": ["--simulate-ms", "1,2"],
    "exchange": ["--exchange", "bf16"],
    "micro_batch": ["--micro-batch", "4"],
    "epochs": ["--epochs", "2"],
    "batch_size": ["--batch-size", "8"],
    "batches_per_epoch": ["--batches", "2"],
    "lr": ["--lr", "0.5"],
    "seed": ["--seed", "7"],
    "monitor": ["--monitor", "8123"],
}
"""Flags of every field of a manifest; the folder of ``output.dir`` is that of the files."""


def cells(*words):
    return cells_of(request_of(Args.try_parse_from([*words])))


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch):
    monkeypatch.setattr("flodl.ddp_bench.request.usable_gpus", list)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.case("distributed", 59)
def test_no_field_of_a_manifest_is_left_out_here():
    known = {name for section in SECTIONS.values() for name in section.model_fields}
    # `record` is read by fdl, and guards reach every program in a variable. The bench compares
    # modes with one engine, the default, and with ranks that stay.
    others = {"dir", "record", "guards", "engine", "elastic", "min_ranks"}
    assert known - others == SAMPLES.keys()


@pytest.mark.case("distributed", 59)
@each_row("field", SAMPLES)
def test_every_field_changes_what_a_run_records(field):
    start = ["--model", "mlp", *([] if field in ("policy", "backend") else ["--mode", "nccl-sync"])]
    if field == "mode":
        start = start[:2]
    (plain,) = cells(*start)
    (changed,) = cells(*start, *SAMPLES[field])
    assert changed.config() != plain.config()


@pytest.mark.case("distributed", 59)
def test_a_run_records_its_configuration(here):
    words = ["--model", "logistic", "--synthetic", "--epochs", "1", "--batches", "2", "--ranks"]
    words += ["2", "--max-grad-norm", "1", "--checkpoint-every", "1", "--sim-ms", "1,2"]
    assert main(Args.try_parse_from(words)) == 0
    (cell,) = cells(*words)
    form = json.loads((here / "runs/logistic/solo-0/metrics.json").read_text())
    assert form["config"] == json.loads(json.dumps(cell.config()))
    assert (here / "runs/logistic/solo-0/epoch-1.fdl").is_file()


@pytest.mark.case("distributed", 59)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_runs(preset, fdl, here, monkeypatch):
    (here / "small").mkdir()
    assert main(Args.try_parse_from(quick_run("--save-baseline"))) == 0
    done = fdl("-n", "--json", "ddp-bench", preset)
    argv = json.loads(done.out)["argv"]
    words = argv[argv.index("flodl.ddp_bench") + 1 :]
    # The last of two flags counts: the same runs, in small.
    small = ["--synthetic", "--epochs", "1", "--batches", "1", "--batch-size", "4", "--ranks", "2"]
    args = Args.try_parse_from([*words, *small])
    launched = []
    if args.trains:
        monkeypatch.setattr("flodl.ddp_bench.__main__.sweep", only_the_first(launched))
    assert main(args) == 0
    assert bool(launched) == args.trains
    if preset in ("full-sweep", "report"):
        assert (here / "runs/report.md").is_file()


def quick_run(*more):
    small = ["--synthetic", "--epochs", "1", "--batches", "1", "--batch-size", "4"]
    return ["--model", "logistic", "--mode", "solo-0", *small, *more]


def only_the_first(launched):
    """Carry out the first run of a preset that takes one process, and none of the others."""
    from flodl.ddp_bench.sweep import sweep

    def run(planned):
        launched.extend(planned)
        alone = [cell for cell in planned if cell.solo is not None and cell.model == "logistic"]
        return sweep(alone[:1])

    return run


def test_all_means_every_model_in_every_mode():
    made = cells("--model", "all", "--mode", "all")
    assert [(one.model, one.mode) for one in made] == [
        (model, mode) for model in TASKS for mode in MODES
    ]


def test_several_names_and_seeds():
    made = cells("--model", "mlp,lenet", "--mode", "solo-1,cpu-async", "--seeds", "2")
    assert [(one.model, one.mode, one.seed) for one in made] == [
        (model, mode, seed)
        for model in ("mlp", "lenet")
        for mode in ("solo-1", "cpu-async")
        for seed in (42, 43)
    ]
    assert made[1].folder == Path("runs/mlp/solo-1/seed-43")


def test_policy_and_backend_name_a_mode():
    (one,) = cells("--model", "mlp", "--policy", "async", "--backend", "cpu")
    assert one.mode == "cpu-async"
    assert (one.rank_settings().policy, one.rank_settings().backend) == ("async", "cpu")


@each_row(
    ("words", "told"),
    [
        (["--model", "vgg"], "no model `vgg`"),
        (["--mode", "mlp", "--sim-ms", "1,2", "--simulate-ms", "1,2"], "no mode `mlp`"),
        (["--model", "mlp", "--sim-ms", "1,2", "--simulate-ms", "1,2"], "give only one"),
        (["--model", "mlp", "--sim-ms", "1,2,3", "--ranks", "2"], "simulate_ms has 3 values"),
        (["--model", "mlp", "--epochs", "0"], "epochs=0"),
        (["--model", "mlp", "--mode", "sync", "--nodes", "2"], "torchrun --nnodes=2"),
        (["--model", "mlp", "--mode", "nccl-cadence", "--elastic"], "elastic: "),
        ([], "nothing to do"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_cannot_be_meant_is_refused(words, told, capsys):
    try:
        code = main(Args.try_parse_from([*words]))
        said = capsys.readouterr().err
    except Exception as error:
        code, said = error.exit_code, str(error)
    assert code == 2
    assert told in said


@pytest.mark.case("distributed", 58)
def test_offline_without_data_ends_before_anything_starts(here, capsys):
    began = time.process_time()  # what other programs take does not count
    assert main(Args.try_parse_from(["--model", "all", "--mode", "all", "--offline"])) == 2
    assert time.process_time() - began < 5
    said = capsys.readouterr().err
    assert "train-images-idx3-ubyte.gz" in said
    assert str(here / "data/cifar10/cifar-10-binary.tar.gz") in said
    assert str(here / "data/shakespeare/input.txt") in said
    assert not (here / "runs").exists()


def test_a_place_that_cannot_be_written_is_told_in_one_line(here, capsys):
    (here / "runs").touch()
    assert main(Args.try_parse_from(quick_run())) == 1
    assert capsys.readouterr().err == "error: runs: File exists\n"
    assert main(Args.try_parse_from(quick_run("--output", "others", "--report", "runs/page"))) == 1
    assert "error: " in (said := capsys.readouterr().err)
    assert "runs: File exists" in said or "runs: Not a directory" in said


@pytest.mark.slow
@pytest.mark.case("distributed", 58)
def test_offline_without_data_ends_in_five_seconds(fdl):
    done = fdl("ddp-bench", "full-sweep", "--offline", timeout=5)
    assert done.exit == 2
    assert "train-images-idx3-ubyte.gz" in done.err


def test_a_longer_training_starts_with_a_lower_rate():
    task = TASKS["mlp"]
    assert starting_rate(task, 5, None, None) == 1e-3
    assert starting_rate(task, 3, None, None) == 1e-3
    assert starting_rate(task, 50, None, None) == pytest.approx(1e-4)
    assert starting_rate(task, 50, None, 2.0) == pytest.approx(2e-3)
    assert starting_rate(task, 50, 0.1, None) == 0.1


def test_ranks_that_would_share_a_gpu_are_refused(monkeypatch):
    monkeypatch.setattr("flodl.ddp_bench.request.usable_gpus", lambda: [0])
    with pytest.raises(ValueError, match="2 ranks and 1 usable GPUs"):
        cells("--model", "mlp", "--mode", "cpu-async")
    assert len(cells("--model", "mlp", "--mode", "solo-0")) == 1


def test_two_factors_of_the_rate_are_pointed_out(capsys):
    twice = ("--lr-scale", "2", "--lr-scale-ratio", "1", "--ranks", "2")
    cells("--model", "mlp", "--mode", "cpu-async", *twice)
    assert "lr_scale_ratio" in capsys.readouterr().err
    cells("--model", "mlp", "--mode", "solo-0,sync", *twice)
    cells("--model", "mlp", "--mode", "cpu-async", "--lr-scale", "2", "--ranks", "2")
    assert capsys.readouterr().err == ""


def test_the_listing_names_models_and_modes(capsys):
    assert main(Args.try_parse_from(["--list"])) == 0
    words = capsys.readouterr().out.split()
    assert {*TASKS, *MODES} <= set(words)


@pytest.mark.case("distributed", 57)
def test_validate_ends_with_1_where_a_result_does_not_stand(here, capsys):
    path = here / "baselines/baseline.json"
    assert main(Args.try_parse_from(quick_run("--validate"))) == 1
    assert "MISSING" in capsys.readouterr().out
    assert main(Args.try_parse_from(quick_run("--validate", "--allow-missing"))) == 0
    assert main(Args.try_parse_from(["--save-baseline"])) == 0
    assert main(Args.try_parse_from(["--validate"])) == 0
    (entry,) = json.loads(path.read_text())
    for changed, code in (
        ({"eval": 2 * entry["eval"] + 1}, 1),
        ({"eval": entry["eval"] / 2}, 0),
        ({"epochs": 3}, 1),
    ):
        path.write_text(json.dumps([entry | changed]))
        assert main(Args.try_parse_from(["--validate"])) == code
    assert "STALE" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_validating_nothing_fails():
    assert main(Args.try_parse_from(["--validate"])) == 1
