"""The README's examples, run as they are printed, and its figures, read from their pages."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from flodl import Monitor, RunDirectory
from tests.rows import each_row

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FLAT = " ".join(README.split())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def block(language: str, containing: str) -> str:
    (found,) = (block for block in blocks(language) if containing in block)
    return found


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 140


def test_the_two_commands_to_start_with_are_there():
    commands = [line.split("  ")[0] for line in block("bash", "quickstart").splitlines()]
    assert commands == ["bash scripts/quickstart.sh", "bash scripts/test.sh"]


@pytest.fixture
def manifest_project(fdl, tmp_path):
    (tmp_path / "train").mkdir()
    (manifest,) = blocks("yaml")
    (tmp_path / "train/fdl.yml").write_text(manifest)
    (tmp_path / "fdl.yml").write_text("commands:\n  train:\n")
    arguments = block("python", "FdlArgs")
    program = "import json\n" + arguments + "print(json.dumps(args.resolved()))\n"
    (tmp_path / "train/main.py").write_text(program)
    return fdl


def test_the_manifest_runs_as_the_readme_says(manifest_project):
    fdl = manifest_project
    epochs = yaml.safe_load(fdl("train", "quick").out)["epochs"]
    assert (epochs["value"], epochs["origin"]) == (3, "train/fdl.yml:9:15")
    lr = yaml.safe_load(fdl("train", "quick", "--lr", "0.01").out)["lr"]
    assert (lr["value"], lr["origin"]) == (0.01, "command line")


def test_the_manifest_is_the_core_of_a_new_project(fdl, tmp_path):
    assert fdl("init", "new", "--native").exit == 0
    written = yaml.safe_load((tmp_path / "new/train/fdl.yml").read_text())
    (shown,) = (yaml.safe_load(manifest) for manifest in blocks("yaml"))
    quick = shown.pop("commands")["quick"]
    training = shown.pop("training")
    assert shown.items() <= written.items()
    assert training.items() <= written["training"].items()
    assert quick.items() <= written["commands"]["quick"].items()


def test_the_printed_origin_is_the_real_one(manifest_project):
    (promised,) = re.findall(r"\[\"lr\"\]\[\"origin\"\]  # '(.*)'", README)
    assert yaml.safe_load(manifest_project("train").out)["lr"]["origin"] == promised


def test_every_command_about_the_manifest_works(manifest_project):
    lines = [shlex.split(line, comments=True) for line in block("console", "why").splitlines()]
    assert len(lines) == 6
    for dollar, program, *words in lines:
        assert (dollar, program) == ("$", "fdl")
        done = manifest_project(*words)
        assert done.exit == 0, (words, done.err)
        assert done.out, words


def test_the_ten_lines_train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training = block("python", "Trainer.builder")
    assert len([line for line in training.splitlines() if line]) == 10
    exec(training, {})
    (run,) = (tmp_path / "runs/digits").iterdir()
    left = {path.name for path in run.iterdir()}
    assert {"config.json", "environment.json", "metrics.csv", "training.log", "report.html"} <= left
    assert "model.fdl" in left
    assert json.loads((run / "run.json").read_text())["state"] == "complete"


def test_the_commands_for_runs_work(tmp_path, monkeypatch, fdl):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fdl.yml").write_text("commands: {train: }\n")
    (tmp_path / "train").mkdir()
    (tmp_path / "train/fdl.yml").write_text("entry: python main.py\noutput: {dir: runs/digits}\n")
    for loss in (0.4, 0.5):
        with RunDirectory.create("runs/digits") as run:
            monitor = Monitor(1, terminal=False)
            run.attach(monitor)
            monitor.log(0, 0.1, {"val_loss": loss})
            monitor.finish()
            run.finish("complete", epochs=1)
    commands = re.findall(r"`fdl (runs [^`]+)`", FLAT)
    named = [command.split()[1] for command in commands]
    assert named == ["list", "compare", "tail", "ui", "diff", "tell"]
    commands = commands[:3]  # the others serve a page, take two runs, and need one that trains
    for command in commands:
        done = fdl(*command.split())
        assert done.exit == 0, (command, done.err)
        assert done.out


@each_row("target", re.findall(r"\]\((?!https)([^)]+)\)", README))
def test_every_link_leads_somewhere(target):
    assert (ROOT / target).exists()


# --- Figures -----------------------------------------------------------------------------------


def page(name: str) -> str:
    return (ROOT / f"docs/benchmarks/{name}.md").read_text(encoding="utf-8")


def cell(name: str, section: str, row: str, column: str) -> float:
    """A number of a page: the row that begins with these words, below this heading."""
    text = page(name)
    _, found, text = text.partition(f"## {section}" if section else "# ")
    assert found, f"{name} has no section {section}"
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and row in cells:
            return float(cells[header.index(column)].removesuffix("×"))
        if line.startswith("|") and not header:
            header = cells
    raise AssertionError(f"{name}, {section}: no row {row}")


def column(name: str, title: str) -> list[float]:
    """The numbers of a column in the first table of a page."""
    rows = [line.strip("|").split("|") for line in page(name).splitlines() if line[:1] == "|"]
    index = [cell.strip() for cell in rows[0]].index(title)
    body = [row for row in rows[2:] if len(row) == len(rows[0])]
    return [float(row[index]) for row in body]


def said(pattern: str) -> tuple[str, ...]:
    """The figures at one place of the README."""
    found = re.search(pattern, FLAT)
    assert found, f"the README does not say: {pattern}"
    return found.groups()


def assert_rounded(figures: tuple[str, ...], *measured: float) -> None:
    """The figures are these numbers, rounded to the digits that the README gives."""
    assert len(figures) == len(measured)
    for figure, number in zip(figures, measured, strict=True):
        digits = len(figure.partition(".")[2])
        assert figure == f"{number:.{digits}f}", f"the README says {figure}, its page {number}"


F = r"(\d\.\d\d)"


def of_ideal(name: str, section: str, ddp: str, cut: str) -> list[float]:
    """Parts of the ideal speed: ours, DDP, DDP cut by speed, and the better PostLocalSGD."""
    local = [f"PostLocalSGD, every {every}" for every in (4, 16)]
    *others, one, two = (
        cell(name, section, way, "of ideal") for way in ("cadence", ddp, cut, *local)
    )
    return [*others, max(one, two)]


def test_the_speeds_of_unequal_ranks_are_those_of_their_pages():
    cut = "if its batches are cut by speed, and PostLocalSGD"
    assert_rounded(
        said(rf"reach {F} of their combined speed; torch DDP reaches {F}, or {F} {cut} {F}\."),
        *of_ideal("hetero", "ResNet-8: 78,042 parameters", "torch DDP", "torch DDP, cut by speed"),
    )
    assert_rounded(
        said(rf"4 million parameters they reach {F}; DDP reaches {F} or {F}, PostLocalSGD {F} "),
        *of_ideal("hetero", "MLP: 4,206,602 parameters", "torch DDP", "torch DDP, cut by speed"),
    )
    assert "the second takes 2.5 times as long" in page("hetero")
    assert_rounded(
        said(rf"40 and 100 ms per batch reach {F}; DDP reaches {F}, or {F} {cut} {F}\."),
        *of_ideal("unequal_ranks", "40 and 100 ms per batch", "torch-ddp", "sync, cut by speed"),
    )
    assert "Simulated ranks" in page("unequal_ranks")


def test_the_cost_of_a_graph_is_the_range_of_its_page():
    ratios = column("graph_overhead", "graph / by hand")
    assert_rounded(said(rf"A call takes {F} to {F} of the time"), min(ratios), max(ratios))


def test_the_times_per_step_are_those_of_their_engines():
    small = "Small: 64 → 256 → 256 → 64, batches of 64"
    rows = (
        "flodl Trainer, engine eager", "Lightning, all off", "Lightning, defaults", "Accelerate",
    )  # fmt: skip
    eager, bare, usual, accelerate = (
        cell("trainer_overhead", small, row, "µs per step") for row in rows
    )
    shown = said(
        rf"{F} of its time per step on a .*? on a CPU with its extras off, {F} with its "
        rf"defaults\..*?{F} of its time per step on the same model"
    )
    assert_rounded(shown, eager / bare, eager / usual, eager / accelerate)


def test_the_start_up_times_are_those_of_their_page():
    shown = said(rf"starts in {F} of the time of `python -c pass`, `fdl` in \[{F}\]")
    just, own = (
        cell("startup", "", command, "of `python -c pass`")
        for command in ("`just hello`", "`fdl --env ci hello`")
    )
    assert_rounded(shown, just, own)


def test_the_counts_are_those_of_their_pages():
    (kills,) = said(r"After \[(\d+) kills\]")
    assert f"| {kills} kills, and the training went on | PASS |" in page("kills")
    assert "| every sample of every epoch trained once | PASS |" in page("kills")
    (kept,) = said(r"ranks keep \[(0\.\d+)\]")
    assert f"| 10 s | 50 | 50 | 17 | {kept} | 0.80 PASS | 0 | yes |" in page("elastic")
    within, of = said(r"(\d+) of (\d+) comparisons")
    assert f"{within} of {of} are." in page("policy_accuracy")
    assert re.search(r"\| gpt-nano \| nccl-cadence .* MISSED \|", page("convergence_text"))


def test_the_fine_tuning_on_two_ranks_is_that_of_its_page():
    shown = said(rf"unequal ranks takes {F} of the time .* and {F} with policy `cadence`")
    ways = ("flodl, two ranks", "flodl, two ranks, policy cadence")
    rows = [("hf_finetune", "Two unequal ranks", way) for way in ways]
    assert_rounded(shown, *(cell(*row, "/ transformers' Trainer") for row in rows))
    assert min(cell(*row, "difference") for row in rows) > 0
    assert "Neither loses accuracy (one seed)." in FLAT


def test_every_figure_of_the_readme_is_checked_above():
    """A new figure needs a test: this counts those with two decimals."""
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL).replace("Python 3.11", "")
    assert len(re.findall(r"(?<![\d.])\d\.\d\d(?!\d)", prose)) == 23
