"""The first long training of a project names the engine that may be faster, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from flodl import log
from flodl.train import RunDirectory, TrainerBuilder
from flodl.train.observers.reporting import LONG_SECONDS
from tests.flodl.train.programs import training

LINE = "--engine auto may be faster, equal up to rounding: see docs/tutorials/training-more.md\n"


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every training count as long, in a shell and not in CI."""
    monkeypatch.setattr("flodl.train.observers.reporting.LONG_SECONDS", 0.0)
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Train, and return whether the program named the engine."""

    def train(builder: TrainerBuilder | None = None) -> bool:
        run = RunDirectory.create(tmp_path / "runs")
        (builder or training()).run_dir(run).run()
        return capsys.readouterr().out.endswith(LINE)

    return train


def test_the_first_long_training_names_it_and_the_next_one_does_not(told):
    assert told()
    assert not told()


def test_a_short_one_does_not(told, monkeypatch):
    monkeypatch.setattr("flodl.train.observers.reporting.LONG_SECONDS", LONG_SECONDS)
    assert not told()


@pytest.mark.parametrize(
    "builder",
    [lambda: training().engine("auto"), lambda: training().deterministic()],
)
def test_nothing_is_said_where_it_does_not_apply(told, builder):
    assert not told(builder())
    assert told()


def test_ci_and_a_quiet_program_are_not_told_and_do_not_count(told, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert not told()
    monkeypatch.delenv("CI")
    before = log.verbosity()
    log.set_verbosity("quiet")
    assert not told()
    log.set_verbosity(before)
    assert told()


def test_an_interrupted_training_does_not(told):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        told(training().epoch_fn(stop))
    assert told()


def test_where_nothing_can_remember_it_nothing_is_said(told, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLODL_CACHE_DIR", str(tmp_path / "file"))
    assert not told()
