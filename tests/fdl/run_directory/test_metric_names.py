"""Wherever a metric can be named, every name that a program can give it is understood."""

from __future__ import annotations

import csv

import pytest

from fdl.runs.find import choose, search
from fdl.runs.quantity import Known, sorted_by
from fdl.runs.query import matches, parse
from tests.fdl.run_directory.trails import trail
from tests.rows import each_row

GOOD, BAD = "2026-01-01T10-00-00", "2026-01-02T10-00-00"

NAMES = [
    "val/loss",
    "a/b/c.d",
    "val-loss",
    "val.loss",
    "loss@1",
    "val:loss",
    "val loss",
    "error %",
    "Verlust/Größe",
    "损失",
    "loss, mean",
    "loss (mean)",
    "it's",
]
"""Names of a metric of which less is better."""

CHOSEN = [
    ("runs", "show", "{best}", "--json"),
    ("runs", "open", "{best}", "--print"),
    ("runs", "tail", "{best}"),
    ("runs", "diff", "{best}", GOOD),
    ("runs", "compare", "{best}", BAD, "--json"),
    ("runs", "tag", "{best}", "paper"),
    ("runs", "tag", BAD, "{best}", "paper"),
    ("runs", "note", "{best}", "the best"),
    ("runs", "rm", "--dry-run", "{best}"),
    ("runs", "tell", "{best}", "stop"),
    ("runs", "verify", "{best}", "--dry-run"),
    ("why", "{best}:lr", "--json"),
]
"""Command lines in which a run is chosen by its best value."""


SPELLINGS = ["{}", "last:{}", "best:{}", "min({})"]


@pytest.fixture
def folder(tmp_path):
    """The folder of two runs. The older one is the best by every metric."""
    for run, values in ((GOOD, [0.5, 0.05]), (BAD, [0.6, 0.3])):
        trail(tmp_path / "runs" / run, metrics=dict.fromkeys(NAMES, values))
    return tmp_path / "runs"


def quoted(name):
    return f"`{name}`"


def names(runs):
    return [run.name for run in runs]


def listed(done):
    assert (done.exit, done.err) == (0, "")
    return [row["name"] for row in csv.DictReader(done.out.splitlines())]


@pytest.mark.parametrize("words", CHOSEN, ids=" ".join)
@pytest.mark.usefixtures("folder")
def test_every_command_chooses_a_run_by_it(fdl, words):
    chosen = fdl(*(word.format(best="best:val/loss:min") for word in words))
    named = fdl(*(word.format(best=GOOD) for word in words))
    assert (chosen.exit, chosen.out, chosen.err) == (named.exit, named.out, named.err)


@each_row("name", NAMES)
def test_the_best_run_of_either_direction_is_found(folder, name):
    for word, best in ((name, GOOD), (f"{name}:min", GOOD), (f"{name}:max", BAD)):
        assert choose(f"best:{word}", [folder]).name == best


def test_a_path_may_begin_like_a_metric(folder):
    folder.rename(folder.with_name("best:runs"))
    there = folder.with_name("best:runs")
    assert choose(f"{there}/{GOOD}", []).name == GOOD


@each_row("name", NAMES)
def test_runs_are_sorted_by_it(folder, name):
    runs = search([folder])
    for spelling in SPELLINGS:
        for quantity in (spelling.format(name), quoted(spelling.format(name))):
            assert names(sorted_by(quantity, runs)) == [GOOD, BAD]
            assert names(sorted_by(f"{quantity}:max", runs)) == [BAD, GOOD]


@pytest.mark.usefixtures("folder")
def test_a_list_is_sorted_by_its_best_values(fdl):
    for best, order in (("val/loss", [GOOD, BAD]), ("val loss:max", [BAD, GOOD])):
        assert listed(fdl("runs", "list", "--csv", "--best", best)) == order


@pytest.mark.usefixtures("folder")
def test_they_are_columns(fdl):
    asked = [spelling.format(name) for name in NAMES for spelling in SPELLINGS]
    words = ",".join(quoted(one) if "," in one else one for one in asked)
    done = fdl("runs", "list", "--csv", "--columns", f"name, {words},lr")
    _, old = csv.DictReader(done.out.splitlines())
    assert old == {"name": GOOD, **dict.fromkeys(asked, "0.05"), "lr": "0.1"}


@each_row("name", NAMES)
def test_it_is_part_of_a_condition(folder, name):
    runs = search([folder])
    for spelling in SPELLINGS:
        quantity = spelling.format(name)
        asked = quantity if set(name).isdisjoint(" ,()'") else quoted(quantity)
        for text in (f"{asked} < 0.1 and lr = 0.1", f"lr < 1 and not {asked} in (0.3, 4)"):
            condition = parse(text, Known(runs))
            assert names(run for run in runs if matches(condition, run)) == [GOOD]


@pytest.mark.usefixtures("folder")
def test_a_typed_condition_names_it(fdl):
    assert listed(fdl("runs", "list", "--csv", "--where", "val/loss < 0.1")) == [GOOD]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("option", "before"), [("--where", ""), ("--where", "lr < 1 and ("), ("--columns", "")]
)
def test_what_completion_offers_is_understood(fdl, option, before):
    words = ("runs", "list", "--csv", option)
    answers = fdl("__complete", "zsh", "--", *words, before).out.splitlines()
    offered = [line.partition("\t")[0].removeprefix(before) for line in answers]
    for spelling in ("{}", "best:{}"):
        wanted = [spelling.format(name) for name in NAMES]
        found = [one for one in offered if one.strip("`") in wanted]
        assert len(found) == len(NAMES)
        if option == "--columns":
            assert fdl(*words, ",".join(found)).exit == 0
        else:
            condition = before + " < 9 and ".join(found) + " < 9" + ")" * before.count("(")
            assert listed(fdl(*words, condition)) == [BAD, GOOD]


@pytest.mark.usefixtures("folder")
def test_completion_goes_on_with_a_name_in_backquotes(fdl):
    answers = fdl("__complete", "bash", "--", "runs", "list", "--where", "lr < 1 and `loss (")
    assert answers.out == "lr < 1 and `loss (mean)`\n"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["val/loss", "loss, mean"])
def test_the_best_runs_by_it_are_kept(fdl, name):
    for by, lost, other in ((name, BAD, GOOD), (f"{name}:max", GOOD, BAD)):
        done = fdl("runs", "prune", "--dry-run", "--keep-best", "1", "--by", by)
        assert lost in done.out, done.err
        assert other not in done.out
