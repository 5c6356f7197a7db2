"""The rules of all benchmarks: turns, figures, bars, command line and page."""

from pathlib import Path

import pytest

from benchmarks.measure import (
    Bar,
    command_line,
    in_turns,
    interleaved,
    median_ratio,
    page,
    publish,
    read_options,
    spread,
)
from tests.rows import each_row


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project, which is compiled in no time."""
    monkeypatch.setattr("benchmarks.measure.ROOT", tmp_path)
    (tmp_path / "flodl").mkdir()
    (tmp_path / "flodl/trainer.py").touch()
    return tmp_path


def options(*words: str, **quick: object):
    return read_options(
        command_line("example", "Say one thing.\n\nMore.", rounds=9), words, **quick
    )


def test_no_round_pays_for_compiling(root):
    options("--quick")
    assert not list(root.glob("flodl/*/*.pyc"))
    options()
    assert list(root.glob("flodl/*/trainer.*.pyc"))


def test_subjects_take_turns_and_the_order_rotates():
    order: list[str] = []
    found = in_turns(["a", "b", "c"], lambda name: order.append(name) or name, 2, warmup=1)
    assert "".join(order) == "abcbcacab"
    assert found == {name: [name, name] for name in "abc"}


def test_rounds_that_warm_up_are_not_counted():
    calls: list[str] = []
    seconds = interleaved({"a": lambda: calls.append("a")}, 3, warmup=2)
    assert len(calls) == 5
    assert len(seconds["a"]) == 3


def test_a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians():
    assert median_ratio([1.0, 20.0, 300.0], [1.0, 10.0, 600.0]) == 1.0


def test_the_spread_is_the_middle_80_percent():
    assert spread([3.0, 1.0, 2.0]) == "1.00 … 3.00"
    assert spread([float(n) for n in range(1, 21)], ".0f") == "3 … 18"
    assert spread([0.001, 0.002], ".1f", 1e3) == "1.0 … 2.0"


@each_row(
    ("bar", "value", "told"),
    [
        (Bar(0.52), 0.52, "0.52 PASS"),
        (Bar(0.52), 0.521, "0.52 MISSED"),
        (Bar(0.95, least=True), 0.95, "0.95 PASS"),
        (Bar(0.95, least=True), 0.94, "0.95 MISSED"),
        (Bar(0.35, earlier=(0.4,)), 0.37, "0.35 MISSED, earlier 0.40 PASS"),
        (Bar(50, form="g"), 51.0, "50 MISSED"),
    ],
)
def test_a_bar_says_whether_it_is_reached(bar, value, told):
    assert bar.verdict(value) == told


def test_a_page_names_its_command_without_the_file():
    read = options("--rounds", "3", "--output", "somewhere/page.md")
    text = page(read, "Title", "One sentence.", "A table.", packages=())
    assert read.command == "python -m benchmarks.example --rounds 3"
    assert text.startswith("# Title\n\n")
    assert text.endswith(" One sentence. `python -m benchmarks.example --rounds 3`\n\nA table.")


def test_quick_sets_small_defaults_and_says_so():
    assert options().rounds == 9
    read = options("--quick", rounds=1)
    assert read.rounds == 1
    assert options("--quick", "--rounds", "2", rounds=1).rounds == 2
    assert "no figure here counts" in page(read, "Title", "One sentence.", packages=())


def test_quick_replaces_no_page(tmp_path: Path, capsys):
    target = tmp_path / "page.md"
    publish("figures", target)
    with pytest.raises(SystemExit):
        options("--quick", "--output", str(target))
    assert "--quick would replace the figures" in capsys.readouterr().err
    assert target.read_text() == "figures\n"
