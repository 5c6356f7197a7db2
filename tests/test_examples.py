"""Every program of examples/, started as a user starts it; what it prints is what it promises."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from flodl import FlowBuilder

EXAMPLES = Path(__file__).parent.parent / "examples"

Run = Callable[..., str]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Start an example in an empty folder; returns what it printed."""
    # Models this small are slower on several threads, above all beside other tests.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def start(name: str, *argv: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *argv])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield start
    torch.set_num_threads(threads)


def number(pattern: str, printed: str) -> float:
    """The number a line ends with."""
    found = re.search(pattern + r"\s+([0-9.]+)$", printed, re.MULTILINE)
    assert found, printed
    return float(found[1])


def test_quickstart_learns_the_digits_and_a_copy_answers_alike(run: Run) -> None:
    printed = run("quickstart.py")
    losses = [float(loss) for loss in re.findall(r"^epoch \d+  loss (\S+)$", printed, re.MULTILINE)]
    assert len(losses) == 8
    assert losses[-1] < 0.15 < losses[0]
    assert number("^accuracy", printed) > 0.92
    assert "the copy answers alike: True" in printed


def test_sine_wave_stops_by_itself_with_a_small_error(run: Run) -> None:
    printed = run("sine_wave.py")
    stopped = re.search(
        r"^stopped after (\d+) epochs: the loss has settled$", printed, re.MULTILINE
    )
    assert stopped, printed
    assert 100 <= int(stopped[1]) < 1500
    assert number("^mean squared error", printed) < 1e-3
    assert "the loop moved 4 times" in printed
    points = re.findall(r"^sin\(\S+\) = (\S+)  model (\S+)$", printed, re.MULTILINE)
    assert len(points) == 5
    assert all(abs(float(true) - float(guess)) < 0.1 for true, guess in points)


def test_transfer_learning_reuses_the_trunk(run: Run) -> None:
    printed = run("transfer_learning.py")
    untrained = number("head untrained:", printed)
    on_frozen = number("head on frozen trunk:", printed)
    fine_tuned = number("all of it fine-tuned:", printed)
    assert number("trained from scratch:", printed) > 0.95
    assert untrained < 0.5
    assert on_frozen > 0.85
    assert fine_tuned > 0.93
    assert re.search(r"loaded into the trunk: [1-9]\d* tensors, missing 0$", printed, re.MULTILINE)
    assert "the trunk is as it was: True" in printed


def test_observation_follows_metrics_and_leaves_files(run: Run, tmp_path: Path) -> None:
    printed = run("observation.py", "notes")
    lines = [line for line in printed.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["10", "20", "30", "40", "50", "60"]
    for name in ("loss=", "branches_0=", "branches_1=", "encoder.saturated="):
        assert all(name in line for line in lines), printed
    first, last = re.findall(r"loss: (\S+) at first, (\S+) at last", printed)[0]
    assert float(last) < 0.5 * float(first)
    names = {path.name for path in (tmp_path / "notes").iterdir()}
    assert names == {"curves.html", "curves.csv", "training.log", "network.svg"}
    header, *rows = (tmp_path / "notes/curves.csv").read_text(encoding="utf-8").splitlines()
    assert header.split(",")[0] == "epoch"
    assert len(rows) == 60


def test_observation_writes_below_runs_by_default(run: Run, tmp_path: Path) -> None:
    printed = run("observation.py")
    assert "written: curves.csv, curves.html, network.svg, training.log" in printed
    assert (tmp_path / "runs/observation/curves.html").is_file()


def test_schedulers_prints_what_every_schedule_did(run: Run) -> None:
    header, *lines = run("schedulers.py").splitlines()
    assert re.fullmatch(r"rate at( +epoch \d){6} +loss +accuracy", header)
    table = {line[:16].strip(): [float(cell) for cell in line[16:].split()] for line in lines}
    rates = {name: cells[:6] for name, cells in table.items()}
    assert rates["step decay"] == [0.2, 0.2, 0.06, 0.06, 0.018, 0.018]
    assert rates["multi-step"] == [0.2, 0.2, 0.2, 0.02, 0.02, 0.002]
    assert rates["cosine"] == [0.2, 0.1866, 0.15, 0.1, 0.05, 0.0134]
    assert rates["cyclic"] == [0.01, 0.2] * 3
    assert rates["warm-up, cosine"][0] < 0.01 < rates["warm-up, cosine"][1] == 0.2
    assert max(rates["one cycle"]) == rates["one cycle"][2] > 0.19
    assert rates["exponential"][0] / rates["exponential"][3] == pytest.approx(10, rel=1e-3)
    assert set(rates["plateau"]) <= {0.2, 0.06, 0.018, 0.0054}
    assert len(table) == 8
    assert all(loss < 0.2 and accuracy > 0.92 for *_, loss, accuracy in table.values())


def test_showcase_trains_every_construct(run: Run) -> None:
    printed = run("showcase.py")
    found = re.search(r"first 20 windows (\S+), in the last 20 (\S+)$", printed, re.MULTILINE)
    assert found, printed
    assert float(found[2]) < 0.7 * float(found[1])
    assert "encoder" in printed
    assert "it remembers something: True" in printed
    assert "moves of the loop: 3" in printed
    assert "views of the stream: ['views_0', 'views_1', 'views_2']" in printed


def test_showcase_uses_every_step_of_the_builder() -> None:
    source = (EXAMPLES / "showcase.py").read_text(encoding="utf-8")
    steps = {name for name in dir(FlowBuilder) if not name.startswith("_")}
    assert {name for name in steps if f".{name}(" not in source} == {"verbose"}


def test_the_list_of_examples_is_complete() -> None:
    listed = re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))
