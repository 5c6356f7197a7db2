"""Validation: what is worse, missing or stale, and what is not."""

import json
import math

import pytest

from flodl.ddp_bench.baselines import (
    Baseline,
    Standing,
    compare,
    failures,
    read_baselines,
    save_baselines,
)
from flodl.errors import DataError
from tests.flodl.ddp_bench.figures import record, row
from tests.rows import each_row


def standing(run, *baselines, **options):
    (finding,) = compare([run], [Baseline.of(one) for one in baselines], **options)
    return finding.standing


def accuracy(value, **values):
    return record(rows=(row(eval=value),), **values)


def error(value, **values):
    return record(
        rows=(row(eval=value),), metric="mse", higher_is_better=False, model="conv-ae", **values
    )


@pytest.mark.case("distributed", 57)
def test_only_what_is_worse_fails():
    base = accuracy(0.80)
    assert standing(accuracy(0.80), base) is Standing.OK
    assert standing(accuracy(0.69), base) is Standing.OK
    assert standing(accuracy(0.67), base) is Standing.WORSE
    assert standing(accuracy(0.79), base, tolerance=0.01) is Standing.WORSE
    assert standing(accuracy(math.nan), base) is Standing.WORSE


@pytest.mark.case("distributed", 57)
def test_half_as_much_error_is_fine_and_more_is_not():
    base = error(0.010)
    assert standing(error(0.005), base) is Standing.OK
    assert standing(error(0.0114), base) is Standing.OK
    assert standing(error(0.0116), base) is Standing.WORSE


@pytest.mark.case("distributed", 57)
def test_the_same_mode_counts_before_one_device_alone():
    alone, here = accuracy(0.95), accuracy(0.80, mode="cpu-async")
    run = accuracy(0.78, mode="cpu-async")
    assert standing(run, alone) is Standing.WORSE
    assert standing(run, alone, here) is Standing.OK
    assert standing(accuracy(0.9, mode="cpu-sync"), alone, here) is Standing.OK


@pytest.mark.case("distributed", 57)
@each_row("config", [{"epochs": 2}, {"batches": 10}, {"batch_size": 32}, {"seed": 43}])
def test_other_settings_make_a_baseline_stale(config):
    assert standing(accuracy(0.9, config=config), accuracy(0.9)) is Standing.STALE


def test_results_on_other_data_make_a_baseline_stale():
    assert standing(accuracy(0.9, data="packaged"), accuracy(0.9)) is Standing.STALE


@pytest.mark.case("distributed", 57)
def test_a_missing_baseline_fails_unless_that_is_allowed():
    findings = compare([accuracy(0.9)], [Baseline.of(error(0.1))])
    assert [one.standing for one in findings] == [Standing.MISSING]
    assert failures(findings) == findings
    assert failures(findings, allow_missing=True) == []


def test_of_several_seeds_the_own_one_counts():
    other, own = accuracy(0.99, config={"seed": 1}), accuracy(0.80)
    assert standing(accuracy(0.79), other, own) is Standing.OK


def test_baselines_are_kept_by_model_mode_data_and_seed(tmp_path):
    path = tmp_path / "baselines" / "all.json"
    assert save_baselines(path, [accuracy(0.8), error(0.01)]) == 2
    assert save_baselines(path, [accuracy(0.9), accuracy(0.7, mode="sync")]) == 3
    known = {(one.model, one.mode): one.eval for one in read_baselines(path)}
    assert known == {("mlp", "solo-0"): 0.9, ("mlp", "sync"): 0.7, ("conv-ae", "solo-0"): 0.01}
    fields = set(json.loads(path.read_text())[0])
    assert fields >= {
        "model",
        "mode",
        "loss",
        "eval",
        "epochs",
        "batches",
        "batch_size",
        "seed",
    }


def test_what_is_no_number_is_no_baseline(tmp_path):
    with pytest.raises(DataError, match="not a baseline"):
        save_baselines(tmp_path / "b.json", [accuracy(math.nan)])
    assert not (tmp_path / "b.json").exists()


def test_another_file_is_no_list_of_baselines(tmp_path):
    path = tmp_path / "b.json"
    for text in ("{", '[{"model": "mlp"}]', "7"):
        path.write_text(text)
        with pytest.raises(DataError, match="--save-baseline"):
            read_baselines(path)
