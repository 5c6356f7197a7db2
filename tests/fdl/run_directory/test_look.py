"""``fdl runs show``, ``compare`` and ``open``: one run, several runs, the report."""

from __future__ import annotations

import json
import sys

import pytest

from tests.fdl.run_directory.trails import LR, trail

FIRST, SECOND = "2026-01-31T10-00-00", "2026-02-01T10-00-00"
TWICE = {**LR, "value": 0.2, "origin": "command line"}


@pytest.fixture
def runs(project):
    """Two runs that differ, and the folder they lie in."""
    folder = project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"}) / "out"
    trail(
        folder / FIRST,
        metrics={"loss": [0.5, 0.25], "accuracy": [0.5, 0.9], "same": [1, 1]},
        config={"lr": LR, "seed": {"value": 42, "origin": "default"}, "token": "sesame-open-up"},
        environment={"torch": "2.13.0", "allocator": {"settings": {"hugetlb": "1"}}},
    )
    trail(
        folder / SECOND,
        "failed",
        metrics={"loss": [0.4, 0.125], "accuracy": [0.5, 0.8], "same": [1, 1]},
        config={"lr": TWICE, "seed": {"value": 42, "origin": "command line"}, "depth": 3},
        environment={"torch": "2.13.0", "allocator": {"settings": {}}},
        error="ValueError: no such file",
    )
    return folder


@pytest.mark.usefixtures("runs")
def test_show_tells_everything_about_a_run(fdl):
    session = fdl("runs", "show", FIRST)
    assert (session.exit, session.err) == (0, "")
    sections = session.out.split("\n\n")
    assert sections[0].splitlines() == [
        f"path      out/{FIRST}",
        "state     complete",
        "started   2026-01-31T10:00:00+00:00",
        "finished  2026-01-31T10:02:05+00:00",
        "time      2m05s",
        "epochs    2",
    ]
    assert sections[1].splitlines() == [
        "Metrics:",
        "  loss      0.2500  best 0.2500 (epoch 2)",
        "  accuracy  0.9000  best 0.9000 (epoch 2)",
        "  same      1.0000  best 1.0000 (epoch 1)",
    ]
    assert sections[2].splitlines() == [
        "Configuration:",
        "  lr     0.1       train/fdl.yml:9:13",
        "  seed   42        default",
        "  token  <secret>  recorded",
    ]
    assert sections[3].splitlines() == [
        "Environment:",
        "  torch                       2.13.0",
        "  allocator.settings.hugetlb  1",
    ]
    assert [line.split()[0] for line in sections[4].splitlines()] == [
        "Files:", "config.json", "environment.json", "metrics.csv", "report.html", "run.json",
        "training.log",
    ]  # fmt: skip
    assert "error     ValueError: no such file" in fdl("runs", "show", SECOND).out


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("last", SECOND),
        (SECOND, SECOND),
        ("2026-01", FIRST),
        ("best:accuracy", FIRST),
        ("best:loss", SECOND),
        ("best:loss:max", FIRST),
        (f"out/{FIRST}", FIRST),
        ("out", SECOND),
        (".", SECOND),
    ],
)
def test_a_run_has_many_names(fdl, word, name):
    document = json.loads(fdl("runs", "show", word, "--json").out)
    assert document["name"] == name


@pytest.mark.usefixtures("runs")
def test_without_a_name_it_is_the_last_one(fdl):
    assert json.loads(fdl("runs", "show", "--json").out)["name"] == SECOND


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("word", "problem", "remedy"),
    [
        ("2026", "`2026` means 2 runs: ", "type more of the name, or the run's path"),
        ("2027", "no run is called `2027`", "`fdl runs list` names them all"),
        ("./nowhere", "nowhere does not exist", "`fdl runs list` names the project's runs"),
        (f"out/{FIRST}/run.json", "run.json is not a run and contains none", "`fdl runs list`"),
        ("best:los", "no run measured `los`", "did you mean `loss`?"),
        ("best:", "no metric is named", "such as val_loss"),
    ],
)
def test_a_word_that_means_no_run_is_refused_with_a_remedy(fdl, word, problem, remedy):
    session = fdl("runs", "show", word)
    assert (session.exit, session.out) == (2, "")
    assert problem in session.err
    assert remedy in session.err


def test_no_runs_at_all(project, fdl):
    project({"fdl.yml": "entry: python main.py\noutput: {dir: out}"})
    session = fdl("runs", "show")
    assert (session.exit, session.out) == (1, "")
    assert "there are no runs in out" in session.err


@pytest.mark.usefixtures("runs")
def test_json_of_one_run_has_values_with_origins_and_no_secrets(fdl):
    document = json.loads(fdl("runs", "show", FIRST, "--json").out)
    assert document["config"]["lr"] == {"value": 0.1, "origin": "train/fdl.yml:9:13"}
    assert document["config"]["token"]["value"] == "<secret>"
    assert document["best"]["accuracy"] == {"value": 0.9, "epoch": 2}
    assert document["environment"]["allocator"] == {"settings": {"hugetlb": "1"}}
    assert document["files"]["report.html"] == len("<html></html>")


@pytest.mark.usefixtures("runs")
def test_compare_shows_only_what_differs_and_marks_the_best(fdl):
    session = fdl("runs", "compare", FIRST, SECOND)
    assert (session.exit, session.err) == (0, "")
    heads, metrics, config, environment = session.out.split("\n\n")
    assert heads.splitlines()[0].split() == [FIRST, SECOND]
    rows = [line.split() for line in metrics.splitlines()[1:]]
    assert rows == [
        ["loss", "0.2500", "@2", "0.1250", "@2*"],
        ["accuracy", "0.9000", "@2*", "0.8000", "@2"],
        ["same", "1.0000", "@1*", "1.0000", "@1*"],
    ]
    rows = [line.split(maxsplit=1) for line in config.splitlines()[1:]]
    assert [row[0] for row in rows] == ["lr", "token", "depth"]
    assert "0.1  train/fdl.yml:9:13" in rows[0][1]
    assert "0.2  command line" in rows[0][1]
    assert "sesame" not in session.out
    assert [line.split() for line in environment.splitlines()[1:]] == [
        ["allocator.settings.hugetlb", "1", "-"]
    ]


def test_runs_of_one_name_are_told_apart_by_their_folders(runs, fdl):
    trail(runs / "again" / FIRST)
    session = fdl("runs", "compare", f"out/{FIRST}", f"out/again/{FIRST}")
    assert session.out.splitlines()[0].split() == [f"out/{FIRST}", f"out/again/{FIRST}"]


def test_show_says_how_to_go_on_where_there_is_a_state_to_go_on_from(runs, fdl):
    assert "resume with" not in fdl("runs", "show", SECOND).out
    for run in (FIRST, SECOND):
        (runs / run / "last.fdl").write_bytes(b"")
    assert f"resume with  --resume out/{SECOND}\n" in fdl("runs", "show", SECOND).out
    assert "resume with" not in fdl("runs", "show", FIRST).out  # it is complete


@pytest.mark.parametrize("word", [FIRST, f"out/{FIRST}"])
def test_a_run_whose_record_is_broken_is_told_from_one_that_is_not_there(runs, fdl, word):
    (runs / FIRST / "run.json").write_text('{"state": "comp')
    session = fdl("runs", "show", word)
    assert (session.exit, session.out) == (1, "")
    assert f"out/{FIRST} has a run.json that is broken" in session.err
    assert "restore it from a copy, or remove the folder" in session.err
    (runs / FIRST / "config.json").unlink()
    assert f"out/{FIRST} has a run.json, and no config.json" in fdl("runs", "tail", word).err


def test_a_broken_run_is_told_wherever_the_list_finds_it(runs, fdl):
    name = "2026-03-01T10-00-00"
    (trail(runs / "sweep" / name) / "run.json").write_text("{half")
    assert f"out/sweep/{name}" in fdl("runs", "list").out
    session = fdl("runs", "show", name)
    assert (session.exit, session.out) == (1, "")
    assert f"out/sweep/{name} has a run.json that is broken" in session.err


def test_a_setting_is_the_same_whether_fdl_or_a_person_gave_it(runs, fdl):
    trail(runs / "2026-03-01T10-00-00", config={"lr": {"value": 0.2, "origin": "default"}})
    document = json.loads(fdl("runs", "compare", "last", SECOND, "--json").out)
    assert "lr" not in document["config"]


@pytest.mark.usefixtures("runs")
def test_compare_as_json(fdl):
    document = json.loads(fdl("runs", "compare", "last", FIRST, "--json").out)
    assert [run["name"] for run in document["runs"]] == [SECOND, FIRST]
    assert document["metrics"]["loss"] == {
        "values": [{"value": 0.125, "epoch": 2}, {"value": 0.25, "epoch": 2}],
        "best": [0],
    }
    assert document["config"]["depth"] == [{"value": 3, "origin": "recorded"}, None]
    assert "seed" not in document["config"]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "two or more different runs"),
        ([FIRST], "two or more different runs"),
        ([FIRST, f"out/{FIRST}"], "two of these names mean the same run"),
    ],
)
def test_a_comparison_needs_two_runs(fdl, words, problem):
    session = fdl("runs", "compare", *words)
    assert session.exit == 1
    assert problem in session.err


def test_open_prints_the_path_where_there_is_no_display(runs, fdl):
    report = f"{runs / SECOND / 'report.html'}\n"
    headless = {"DISPLAY": "", "WAYLAND_DISPLAY": ""}
    assert fdl("runs", "open", env=headless).out == report
    assert fdl("runs", "open", "--print", env={"DISPLAY": ":0"}).out == report


@pytest.mark.skipif(sys.platform != "linux", reason="xdg-open is Linux's")
def test_open_hands_the_report_to_the_desktop(runs, fdl, tmp_path):
    opener = tmp_path / "bin/xdg-open"
    opener.parent.mkdir()
    opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    opener.chmod(0o755)
    session = fdl("runs", "open", FIRST, env={"DISPLAY": ":0", "PATH": str(opener.parent)})
    assert (session.exit, session.out, session.err) == (0, "", "")
    assert (tmp_path / "opened").read_text() == str(runs / FIRST / "report.html")


def test_a_run_without_a_report_says_so(runs, fdl):
    (runs / SECOND / "report.html").unlink()
    session = fdl("runs", "open")
    assert (session.exit, session.out) == (1, "")
    assert "has no report.html: it was removed, or never written" in session.err
    (runs / SECOND / "metrics.csv").unlink()
    record = json.loads((runs / SECOND / "run.json").read_text())
    (runs / SECOND / "run.json").write_text(json.dumps({**record, "epochs": 0}))
    assert "has no report.html: no epoch was finished" in fdl("runs", "open").err
    # Without a training, fdl alone writes the record.
    del record["epochs"]
    (runs / SECOND / "run.json").write_text(json.dumps(record))
    assert "has no report.html: its program did not write one" in fdl("runs", "open").err


def test_broken_json_of_a_run_is_an_error_that_names_the_file(runs, fdl):
    (runs / FIRST / "config.json").write_text("[1]")
    session = fdl("runs", "show", FIRST)
    assert (session.exit, session.out) == (1, "")
    assert f"{FIRST}/config.json is not a JSON object" in session.err


def test_what_the_trainer_records_beside_the_metrics_has_no_best_value(runs, fdl):
    for name in (FIRST, SECOND):
        trail(
            runs / "more" / name,
            metrics={"loss": [0.5, 0.25], "lr": [0.1, 0.2], "grad_norm": [3, 1]},
            environment={"memory": 25_276_514_304, "engine": {"source": "", "engine": "auto"}},
        )
    shown = fdl("runs", "show", f"out/more/{FIRST}").out
    assert "  lr         0.2000\n  grad_norm  1.0000\n" in shown
    assert "  memory         25.3 GB\n  engine.engine  auto\n\n" in shown
    assert list(json.loads(fdl("runs", "show", f"out/more/{FIRST}", "--json").out)["best"]) == [
        "loss"
    ]
    compared = json.loads(
        fdl("runs", "compare", f"out/more/{FIRST}", f"out/more/{SECOND}", "--json").out
    )
    assert list(compared["metrics"]) == ["loss"]


@pytest.mark.parametrize(
    "asked", ["last:lr", f"{SECOND}:lr", "2026-02:lr", "best:accuracy:lr", "best:loss:min:--lr"]
)
@pytest.mark.usefixtures("runs")
def test_why_takes_every_name_of_a_run(fdl, asked):
    session = fdl("why", asked)
    assert (session.exit, session.err) == (0, "")
    value = "0.1" if "accuracy" in asked else "0.2"
    assert session.out.startswith(f"training.lr = {value}\n")


def test_why_takes_the_name_that_a_run_was_given(runs, fdl):
    trail(runs / "2026-03-01T10-00-00", name="baseline")
    assert fdl("why", "baseline:lr").out.startswith("training.lr = 0.1\n")


def test_why_says_which_run_it_does_not_know(runs, fdl):
    session = fdl("why", "2026:lr")
    assert (session.exit, session.out) == (2, "")
    assert "error: `2026` means 2 runs: " in session.err
    assert "nothing in fdl.yml sets `other:lr`" in fdl("why", "other:lr").err
    for run in (FIRST, SECOND):
        (runs / run / "run.json").unlink()
    assert "error: there are no runs in out\n" in fdl("why", "last:lr").err


@pytest.mark.usefixtures("runs")
def test_a_name_that_is_metric_and_setting_is_listed_once(runs, fdl):
    trail(runs / "2026-03-01T10-00-00", metrics={"lr": [0.1, 0.1]})
    hint = fdl("runs", "list", "--sort", "foo").err.splitlines()[1]
    names = hint.removeprefix("hint: known are ").split(", ")
    assert "lr" in names
    assert len(names) == len(set(names))


def test_a_run_on_one_device_has_no_ledger_to_verify(runs, fdl):
    trail(runs / "2026-03-01T10-00-00", launched_ranks=None)
    session = fdl("runs", "verify", "last")
    assert (session.exit, session.out) == (2, "")
    assert session.err == (
        "error: out/2026-03-01T10-00-00 has no sample ledger: it was trained on one device, and "
        "only a training in several processes writes one\n"
        "hint: name a run of several processes: fdl runs verify RUN\n"
    )


def test_of_an_engine_a_comparison_shows_one_line(project, fdl):
    folder = project({"fdl.yml": "entry: python main.py"}) / "runs"
    for at, (name, steps) in enumerate(((FIRST, "plain"), (SECOND, "compiled")), 1):
        engine = {"engine": "auto", "stretches": [[1, "plain"], [40, steps]], "trials": at}
        trail(folder / name, environment={"torch": "2.13.0", "engine": engine})
    told = fdl("runs", "compare", FIRST, SECOND, "--json").out
    assert json.loads(told)["environment"] == {"engine": ["auto, plain", "auto, compiled"]}
    shown = fdl("runs", "show", FIRST, "--json").out
    assert json.loads(shown)["environment"]["engine"]["trials"] == 1
