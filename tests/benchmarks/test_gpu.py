"""What a GPU measures is planned without one, and the page of what never ran on one is true."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import torch

from benchmarks import gpu, gpu_ran, ten_models
from benchmarks.gpu_lines import places_in
from benchmarks.rows import Kept
from benchmarks.ten_models_networks import networks

PAGE = Path(__file__).parents[2] / "docs/benchmarks/gpu.md"

PROGRAM = """
import torch

def copied(tensor):
    if tensor.is_cuda:
        tensor = tensor.cpu()
    return tensor

def seeded(seed, device):
    used = device.type == "cuda"
    torch.manual_seed(seed)
    return torch.cuda.initial_seed() if used else seed

def free(device):
    if not torch.cuda.is_available():
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    return free

def names():
    return [torch.cuda.get_device_name(0)]

class Timer:
    def __init__(self):
        self.begin = torch.cuda.Event()
    def stop(self):
        return 1

def everywhere(device):
    return device.type != "cuda" and torch.cuda.device_count() > 1
"""


class StandIn:
    """Plays the part of a process with a network on a GPU."""

    def __init__(self, _: str, subject: str, options: Any, *, kept_heap: bool) -> None:
        assert (options.device, kept_heap) == ("cuda", False)
        self._engine = options.engine
        self._seconds = {"eager": 2.0, "fused": 1.0}.get(subject, 0.5)

    def ask(self, command: str) -> Mapping[str, Any]:
        if command == "report":
            return {"fallback": "no graph"} if self._engine == "cuda_graph" else {}
        return {"seconds": self._seconds}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


def test_a_machine_without_a_gpu_is_told_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        gpu.main([])
    assert end.value.code == gpu.NO_GPU
    told = capsys.readouterr()
    assert "no CUDA device" in told.err
    assert told.out == ""


def test_every_network_is_planned_in_every_way():
    cells = gpu.planned()
    assert len(set(cells)) == len(cells)
    models = {(one.row, one.column) for one in cells if one.part == "ten models"}
    assert models == {(name, way) for name in networks() for way in gpu.WAYS}
    assert len(networks()) == 10
    predictions = [one for one in cells if one.part == "predictions"]
    assert {one.row.split()[-1] for one in predictions} == {"float32", "bfloat16"}


def test_ratios_are_to_plain_pytorch_and_a_fall_back_is_told(monkeypatch):
    monkeypatch.setattr(ten_models, "Player", StandIn)
    options = gpu.options_from(["--models", "mlp", "--rounds", "3"])
    kept = Kept({"mlp": {"where": "a GPU", "date": "today"}}, None)
    [(_, kept.rows["mlp"]["cells"])] = gpu.model_rows(["mlp"], options)
    lines = gpu.assembled(options, kept).splitlines()
    header, row = (
        next(one for one in lines if one.startswith(f"| m{word}")) for word in ("o", "l")
    )
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert cells["fused"] == "0.500"
    assert cells["cuda_graph"] == cells["auto"] == "0.250"
    assert "cuda_graph: no graph" in row
    assert cells["auto / best, bar 1.02"] == "1.000"
    assert "| PASS |" in row
    best = {"plain": 1.0, "fused": 0.7, "auto": 0.9, gpu.PURE: 0.71}
    other = {"plain": 1.0, "fused": 0.7, "auto": 0.7, gpu.PURE: 0.9}  # not what was declared
    slow = {"plain": 1.0, "fused": 0.9, "auto": 1.01, gpu.PURE: 0.9}
    judged = [gpu.verdict(step) for step in (best, {**best, gpu.PURE: 0.72}, other, slow)]
    passed = [["1.014", "PASS"], ["1.029", "MISSED"], ["1.286", "MISSED"], ["1.000", "MISSED"]]
    assert judged == passed
    assert "a GPU, today." in lines
    assert any(line.startswith("Not measured yet: convnet, ") for line in lines)


def test_missing_rows_come_first_and_only_what_fits_is_begun(monkeypatch):
    today, here = {"where": "here", "date": "today"}, ["mlp", "convnet", "gru_seq", "lstm_seq"]
    kept = Kept({"mlp": {**today, "date": "before"}, "gru_seq": {**today, "cells": []}}, None)
    assert gpu.wanted(here, kept, today) == ["convnet", "lstm_seq", "mlp"]
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    budget = gpu.Budget(100.0)
    kept.rows["convnet"] = {"seconds": 30.0}
    assert gpu.expected("convnet", kept) == 30.0
    assert gpu.expected("lstm_seq", kept) == gpu.EXPECTED["ten models"]
    assert budget.rows(["convnet", "lstm_seq", "mlp"], kept) == 2
    assert budget.rows(["lstm_seq"] * 9, kept) == 2
    now[0] = 70.5
    assert not budget.allows(30.0)
    assert budget.rows(["convnet"], kept) == 1


def test_everything_fits_into_ten_minutes_the_ten_models_first(tmp_path, capsys):
    gpu.main(["--plan", "--output", str(tmp_path / "none.md")])
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    rows = [cells for cells in lines if len(cells) == 4 and cells[1].isdigit()]
    assert [row[0] for row in rows] == [*networks(), *gpu.PROGRAMS, "predictions"]
    assert float(rows[-1][-1]) <= 600
    gpu.main(["--plan", "--seconds", "300", "--output", str(tmp_path / "none.md")])
    assert "the next call" in capsys.readouterr().out


ON_A_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=ON_A_GPU)])
def test_what_ran_on_a_gpu_is_read_from_the_run_of_the_tests(real, tmp_path, monkeypatch):
    if not real:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    junit, coverage = tmp_path / "gpu.xml", tmp_path / "coverage.json"
    junit.write_text(
        '<testsuite><testcase classname="tests.nn.test_a" name="test_one[x]"/>'
        '<testcase classname="tests.nn.test_a" name="test_one[y]"/>'
        '<testcase classname="tests.nn.test_a" name="test_two"><skipped/></testcase>'
        '<testcase classname="tests.nn.test_a" name="test_three"><failure/></testcase></testsuite>'
    )
    place = next(one for one in gpu_ran.places() if one.file == "flodl/memory.py")
    bodies = {place.function: {"executed_lines": [place.line + 1]}}
    # `def` and `class` run where a module is imported.
    imported = {"": {"executed_lines": list(range(1, 500))}}
    outside = next(one for one in gpu_ran.places() if one.file == "examples/mixed_precision.py")
    files = {place.file: {"functions": bodies}, "flodl/data/transfer.py": {"functions": imported}}
    files[outside.file] = {"functions": {"": {"executed_lines": [outside.line]}}}
    coverage.write_text(json.dumps({"files": files}))
    found = gpu_ran.what_ran(junit, coverage)
    assert found["tests"] == {"tests/nn/test_a.py::test_one": 2}
    ran = [[one.file, one.function, one.why] for one in (place, outside)]
    assert sorted(found["code"]) == sorted(ran)
    assert str(found["where"]).startswith(f"{torch.cuda.get_device_name()}; ")


def test_lines_that_only_a_gpu_runs_are_found_in_the_syntax():
    found = [
        (place.function, PROGRAM.splitlines()[place.line - 1].strip(), place.lines)
        for place in places_in(PROGRAM, "program.py")
    ]
    assert found == [
        ("copied", "tensor = tensor.cpu()", 1),
        ("seeded", "return torch.cuda.initial_seed() if used else seed", 1),
        ("free", "free, _ = torch.cuda.mem_get_info(device)", 2),
        ("names", "def names():", 2),
        ("Timer", "class Timer:", 5),
    ]


def test_a_place_keeps_its_name_when_lines_are_added_above_it():
    def names(program):
        return [(one.function, one.why) for one in places_in(program, "program.py")]

    assert ("free", "after if not torch.cuda.is_available()") in names(PROGRAM)
    assert names("import os\n\n" + PROGRAM) == names(PROGRAM)


def test_a_function_that_is_named_by_hand_must_exist():
    with pytest.raises(LookupError, match="Capture"):
        places_in("import torch\n", "flodl/train/step/capturing.py")


def test_the_page_of_what_never_ran_on_a_gpu_has_the_figures_and_lines_of_today(monkeypatch):
    """The slow test compares its tests, too."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"\| `(tests/[^`]+)` \| (\d+) \|", text)
    assert len(rows) > 20
    listed = [name for name, cases in rows for _ in range(int(cases))]
    monkeypatch.setattr(gpu_ran, "gpu_tests", lambda: listed)
    command = f"python -m benchmarks.gpu --list --output {PAGE}"
    assert gpu_ran.never_run(gpu.planned()) + "\n" == text, command


@pytest.mark.slow
def test_the_page_of_what_never_ran_on_a_gpu_has_every_test():
    assert gpu_ran.never_run(gpu.planned()) + "\n" == PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_program_runs_with_its_smallest_sizes(tmp_path):
    target = tmp_path / "page.md"
    gpu.main(["--device", "cpu", "--quick", "--output", str(target)])
    text = target.read_text(encoding="utf-8")
    assert "`python -m benchmarks.gpu --device cpu --quick`" in text
    parts = ("## Ten models", "## Predictions", "## Trainer overhead", "## Data feed")
    assert all(part in text for part in parts)
    assert "no figure here counts" in text
