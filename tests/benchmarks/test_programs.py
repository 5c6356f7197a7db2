"""Every program runs with its smallest sizes and writes a page by the common rules."""

import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from tests.rows import each_row

PAGES = Path(__file__).parents[2] / "docs/benchmarks"
MEASURED = sorted(page for page in PAGES.glob("*.md") if page.name != "README.md")

QUICK = [
    "data_feed",
    "histogram_cost",
    "virtual_ranks",
]
LONG = [  # they start processes, or measure for seconds
    "checkpoint_io",
    "graph_overhead",
    "log_cost",
    "page",
    "trainer_overhead",
    "convergence",
    "ddp",
    "elastic",
    "fuzz_manifests",
    "gradient_checkpointing",
    "ghost",
    "heap_memory",
    "hetero",
    "hf",
    "hf_memory",
    "hf_finetune",
    "kills",
    "plan_memory",
    "policy_accuracy",
    "run_diff",
    "setup_mode",
    "shared_machine",
    "start",
    "startup",
    "ten_models",
    "trace_cost",
    "unequal_ranks",
]
TOOLS = ["exchange", "gpu", "libtorch_install", "runs_listed", "runs_page", "side_by_side"]
"""These need a GPU, the wheel of torch, root, or other tools on the machine."""


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def quick(name: str, target: Path, *words: str) -> str:
    program = import_module(f"benchmarks.{name}")
    with suppress(SystemExit):  # a missed bar is a result of some programs
        program.main(["--quick", *words, "--output", str(target)])
    return target.read_text(encoding="utf-8")


def check(name: str, text: str) -> None:
    assert f"`python -m benchmarks.{name} --quick`" in text
    assert re.match(r"# \w", text)
    assert "|---|" in text
    if name != "ten_models":
        assert "no figure here counts" in text


@pytest.mark.parametrize("name", QUICK)
def test_a_program_runs_with_its_smallest_sizes(name, tmp_path):
    check(name, quick(name, tmp_path / "page.md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_program_with_processes_runs_with_its_smallest_sizes(name, tmp_path):
    check(name, quick(name, tmp_path / "page.md"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")  # other libraries are measured, too
@pytest.mark.parametrize("name", ["data_feed", "trainer_overhead"])
def test_a_program_measures_on_a_gpu(name, tmp_path):
    text = quick(name, tmp_path / "page.md", "--device", "cuda")
    assert f"`python -m benchmarks.{name} --quick --device cuda`" in text
    assert "|---|" in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_rows_of_a_gpu_name_it(tmp_path):
    target = tmp_path / "rows.md"
    gpu.main(["--quick", "--parts", "data feed", "--output", str(target)])
    assert torch.cuda.get_device_name() in target.read_text(encoding="utf-8")


@each_row("name", [*QUICK, *LONG, *TOOLS])
def test_every_program_has_the_common_options(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        import_module(f"benchmarks.{name}").main(["--help"])
    told = capsys.readouterr().out
    assert f"python -m benchmarks.{name}" in told
    assert all(option in told for option in ("--quick", "--output"))


@each_row("page", MEASURED, ids=lambda path: path.stem)
def test_every_page_names_its_command(page):
    programs = re.findall(r"`python -m benchmarks\.(\w+)", page.read_text(encoding="utf-8"))
    assert programs
    assert set(programs) <= {*QUICK, *LONG, *TOOLS}


@each_row("page", MEASURED, ids=lambda path: path.stem)
def test_a_verdict_is_pass_or_missed(page):
    assert not re.findall(r"\bFAIL(?!ED)\b", page.read_text(encoding="utf-8"))


def test_the_first_bar_of_cadence_stays_on_its_page():
    text = (PAGES / "hetero.md").read_text(encoding="utf-8")
    assert "| cadence, 2026-11-22 | 133.06 | 0.878 MISSED |" in text
    bars = import_module("benchmarks.hetero").SUBJECTS["MLP"].bars
    assert bars["cadence"].verdict(0.895) == "0.93 MISSED, earlier 0.90 MISSED"
