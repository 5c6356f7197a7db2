"""The benchmark of convergence keeps its runs and continues where it was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import convergence
from flodl.ddp_bench.cell import Cell
from flodl.ddp_bench.request import Request, cells_of
from flodl.ddp_bench.sweep import Outcome, sweep


def planned(folder: Path) -> list[Cell]:
    request = Request(
        models=("logistic",),
        modes=(convergence.ALONE,),
        output=folder,
        source="packaged",
        epochs=1,
        batches=2,
        seeds=2,
    )
    return cells_of(request)


def test_runs_that_are_kept_are_not_repeated(tmp_path, monkeypatch):
    cells = planned(tmp_path)
    asked: list[list[Cell]] = []

    def counted(cells: Sequence[Cell]) -> list[Outcome]:
        asked.append(list(cells))
        return sweep(cells)

    monkeypatch.setattr(convergence, "sweep", counted)
    first = convergence.measured(cells[:1])
    both = convergence.measured(cells)
    again = convergence.measured([replace(cells[0], lr=0.5), cells[1]])
    assert [[cell.seed for cell in one] for one in asked] == [[42], [42 + 1], [42]]
    assert first[0].record is not None
    assert both[0].record == first[0].record
    assert {outcome.cell.lr for outcome in again} == {0.5, cells[1].lr}


def test_after_ctrl_c_the_page_has_the_modes_that_are_complete(tmp_path, monkeypatch):
    cells = planned(tmp_path)

    def stopped(cells: Sequence[Cell]) -> list[Outcome]:
        sweep(cells[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(convergence, "sweep", stopped)
    words = ["--models", "logistic", "--modes", convergence.ALONE, "--seeds", "2"]
    monkeypatch.setattr(convergence, "cells", lambda *_: cells)
    page = tmp_path / "page.md"
    runs = str(tmp_path / "runs")
    row = "| logistic | solo-0 | accuracy 0.9000 | 0.8 … 1.0 | +0.0000 | - | 0.005 | yes |"
    page.write_text(f"# Convergence\n\nA machine, 2026-11-22\n\n{row}\n")
    convergence.main([*words, "--runs", runs, "--output", str(page)])
    text = page.read_text()
    assert "Not measured: logistic solo-0." in text
    assert text.count("| logistic | solo-0 |") == 1
    assert row in text.partition("## Measured on 2026-11-22\n")[2]
    assert runs not in text
    # The row stays until it is measured.
    assert convergence.earlier_rows(page, ["logistic solo-0"]) == [
        text[text.index("## Measured") : text.index(row) + len(row)]
    ]
    convergence.main([*words, "--output", str(page)])
    text = page.read_text()
    assert "easured on" not in text
    assert "Not measured" not in text
    assert "| logistic | solo-0 | accuracy" in text
