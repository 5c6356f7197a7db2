"""Whether two ranks learn as much as one from equally many samples; long runs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.convergence import ALONE, cells, figures
from flodl.ddp_bench.cell import MODES
from flodl.ddp_bench.request import Request, cells_of
from flodl.ddp_bench.sweep import sweep
from flodl.ranks.settings import DdpRunConfig

OURS = [mode for mode in MODES if not mode.startswith(("solo", "torch"))]

# Long: all modes and three seeds.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def options(*models: str) -> argparse.Namespace:
    return argparse.Namespace(
        models=models, modes=[ALONE, *OURS], seeds=3, ranks=2, lr_scale_ratio=1.0
    )


@pytest.mark.case("distributed", 62)
@pytest.mark.parametrize("model", ["logistic", "mlp", "lenet"])
def test_every_mode_is_as_accurate_as_one_device_on_the_packaged_digits(
    model: str, tmp_path: Path
) -> None:
    outcomes = sweep(cells(options(model), tmp_path))
    alone = fmean(figures(outcomes, model, ALONE))
    for mode in OURS:
        assert fmean(figures(outcomes, model, mode)) >= alone - 0.005, mode


@pytest.mark.case("distributed", 62)
@pytest.mark.parametrize(("model", "bar"), [("logistic", 0.920), ("mlp", 0.970), ("lenet", 0.983)])
def test_every_mode_reaches_the_known_accuracy_on_mnist(
    model: str, bar: float, tmp_path: Path
) -> None:
    data = Path(os.environ.get("FLODL_BENCH_DATA", "data"))
    if not (data / "mnist").is_dir():
        pytest.skip(f"needs the MNIST files in {data}/mnist; FLODL_BENCH_DATA names the folder")
    request = Request(
        models=(model,),
        modes=(ALONE, *OURS),
        output=tmp_path,
        data_dir=data,
        offline=True,
        epochs=5,
        seeds=3,
        ranks=2,
        ddp=DdpRunConfig(),
    )
    outcomes = sweep(cells_of(request))
    alone = fmean(figures(outcomes, model, ALONE))
    for mode in OURS:
        reached = fmean(figures(outcomes, model, mode))
        assert reached >= bar, mode
        assert reached >= alone - 0.005, mode


@pytest.mark.case("distributed", 64)
@pytest.mark.parametrize("model", ["char-rnn", "gpt-nano"])
def test_every_mode_reaches_the_loss_of_one_device_on_the_packaged_text(
    model: str, tmp_path: Path
) -> None:
    outcomes = sweep(cells(options(model), tmp_path))
    alone = fmean(figures(outcomes, model, ALONE))
    for mode in OURS:
        assert fmean(figures(outcomes, model, mode)) <= alone + 0.05, mode
