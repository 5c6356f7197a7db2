"""`needs`, `inputs` and `outputs` of a command: what runs before it, and when it is skipped."""

import json
import os
import subprocess
import sys

import pytest

from tests import fork_server
from tests.fdl.terminal import PATIENCE
from tests.waiting import pass_a_tick

CHAIN = {
    "fdl.yml": """
        commands:
          prepare:
            run: echo preparing; cat data/*.csv > all.txt
            inputs: data/**/*.csv
            outputs: all.txt
          train:
            run: echo training; wc -l < all.txt > model.txt
            needs: [prepare]
            inputs: [all.txt, env:SEED]
            outputs: [model.txt]
        """,
    "data/x.csv": "1\n",
}


def told(done):
    """What fdl says of each command: `prepare runs: ...`."""
    return [line.removeprefix("fdl ") for line in done.err.splitlines() if line.startswith("fdl ")]


def states(folder):
    """The names of the records of runs."""
    return sorted(one.name.partition(".")[0] for one in (folder / ".fdl/state").glob("*.*.json"))


# needs --------------------------------------------------------------------------------------


def test_needed_commands_run_before_each_once(project, fdl):
    project(
        {
            "fdl.yml": """
            commands:
              a: {run: echo a}
              b: {run: echo b, needs: a}
              c: {run: echo c, needs: [a]}
              d: {run: echo d, needs: [b, c]}
            """
        }
    )
    done = fdl("d")
    assert (done.exit, done.out, done.err) == (0, "a\nb\nc\nd\n", "")
    assert fdl("--jobs", "1", "c", "b").out == "a | a\nc | c\nb | b\n"


def test_presets_folders_and_arguments_can_be_needed_as_they_are_typed(project, fdl):
    project(
        {
            "fdl.yml": """
            commands:
              data:
              all: {run: echo all, needs: [data small, data --size 7, "data show -- x"]}
            """,
            "data/fdl.yml": """
            entry: echo
            commands:
              small: {options: {size: 1}}
              show: {run: echo show}
            """,
        }
    )
    done = fdl("all")
    assert (done.exit, done.out) == (0, "--size 1\n--size 7\nshow x\nall\n")


def test_a_command_that_runs_twice_is_told_apart_by_its_arguments(project, fdl):
    project(
        {
            "fdl.yml": "commands: {d: , e: {run: 'true', needs: [d 1, d 2]}}",
            "d/fdl.yml": "entry: echo",
        }
    )
    assert fdl("--jobs", "2", "e").out in ("d 1 | 1\nd 2 | 2\n", "d 2 | 2\nd 1 | 1\n")


def test_a_preset_takes_what_its_folder_needs_unless_it_says_otherwise(project, fdl):
    project(
        {
            "fdl.yml": """
            commands:
              prepare: {run: echo prepare}
              train: {needs: prepare}
            """,
            "train/fdl.yml": """
            entry: echo train
            commands:
              quick: {options: {epochs: 1}}
              alone: {options: {epochs: 2}, needs: []}
              show: {run: echo show}
              own: {options: {epochs: 3}, needs: [show, prepare]}
            """,
        }
    )
    assert fdl("train").out == "prepare\ntrain\n"
    assert fdl("train", "quick").out == "prepare\ntrain --epochs 1\n"
    assert fdl("train", "alone").out == "train --epochs 2\n"
    assert fdl("train", "show").out == "show\n"
    # A name is one of this manifest, else of the nearest one above.
    assert fdl("train", "own").out == "show\nprepare\ntrain --epochs 3\n"


def test_a_circle_is_an_error_with_its_way_and_places(project, fdl):
    project(
        {
            "fdl.yml": """
            commands:
              a: {run: echo a, needs: b}
              b: {run: echo b, needs: [c]}
              c: {run: echo c, needs: [d, b]}
              d: {run: echo d}
              me: {run: echo me, needs: me}
            """
        }
    )
    done = fdl("a")
    assert (done.exit, done.out) == (1, "")
    assert "fdl.yml:4:31: commands need each other in a circle: " in done.err
    assert "`b` (fdl.yml:3:28) -> `c` (fdl.yml:4:31) -> `b`" in done.err
    assert "`me` (fdl.yml:6:29) -> `me`" in fdl("me").err


@pytest.mark.parametrize(
    ("needs", "close"),
    [("prepair", "prepare"), ("sub fsat", "sub fast"), ("sub", ""), ("'it''s'", ""), ("''' '", "")],
)
def test_an_unknown_need_has_a_place_and_a_suggestion(project, fdl, needs, close):
    project(
        {
            "fdl.yml": f"""
            commands:
              prepare: {{run: touch ran}}
              sub:
              train:
                needs: [prepare, {needs}]
                run: touch ran
            """,
            "sub/fdl.yml": "commands: {fast: {run: 'true'}}",
        }
    )
    done = fdl("train")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith("error: fdl.yml:")
    assert "5:22: `fdl train` needs `" in done.err
    assert (f"hint: did you mean `{close}`?" if close else "`fdl list` names") in done.err


def test_a_failure_stops_with_its_code_and_says_what_was_not_run(project, fdl):
    folder = project(
        {
            "fdl.yml": """
            commands:
              bad: {run: exit 3}
              good: {run: 'true'}
              train: {run: touch ran, needs: [bad, good]}
            """
        }
    )
    for words in (["train"], ["--jobs", "4", "train"], ["--jobs", "2", "good", "train"]):
        done = fdl(*words)
        assert done.exit == 3
        assert "`fdl train` was not run" in done.err
    assert not (folder / "ran").exists()


def test_independent_needs_run_at_the_same_time(project, fdl):
    meet = "touch {0}; while [ ! -e {1} ]; do sleep 0.01; done; echo met"
    a, b = meet.format("a.there", "b.there"), meet.format("b.there", "a.there")
    project(
        {
            "fdl.yml": f"""
            commands:
              a: {{run: '{a}'}}
              b: {{run: '{b}'}}
              c: {{run: 'echo last', needs: [a, b]}}
            """
        }
    )
    lines = fdl("--jobs", "2", "c").out.splitlines()
    # The command itself has the terminal.
    assert (sorted(lines[:2]), lines[2:]) == (["a | met", "b | met"], ["last"])


def test_a_dry_run_shows_all_of_them(project, fdl):
    folder = project(CHAIN)
    shown = fdl("--dry-run", "train")
    assert shown.exit == 0
    assert [line.split()[1:] for line in shown.out.splitlines() if line.startswith("command")] == [
        ["fdl", "prepare"],
        ["fdl", "train"],
    ]
    plan = json.loads(fdl("--dry-run", "--json", "train").out)
    assert (plan["command"], [one["command"] for one in plan["needs"]]) == (
        ["train"],
        [["prepare"]],
    )
    several = json.loads(fdl("--dry-run", "--json", "--jobs", "2", "train", "prepare").out)
    assert [one["command"] for one in several["jobs"]] == [["prepare"], ["train"]]
    assert not (folder / ".fdl").exists()


# inputs and outputs -------------------------------------------------------------------------


def test_a_command_is_skipped_while_nothing_changes(project, fdl):
    folder = project(CHAIN)
    first, second = fdl("train"), fdl("train")
    assert first.out == "preparing\ntraining\n"
    assert told(first) == [
        "prepare runs: it has not run here yet",
        "train runs: it has not run here yet",
    ]
    assert (second.exit, second.out) == (0, "")
    assert [line.rpartition(" since ")[0] for line in told(second)] == [
        "prepare skipped: inputs unchanged",
        "train skipped: inputs unchanged",
    ]
    assert states(folder) == ["prepare", "train"]
    assert (folder / ".fdl/.gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    ("change", "prepare", "train"),
    [
        ("echo 2 > data/x.csv", "runs: data/x.csv changed", "runs: all.txt changed"),
        ("mkdir -p data/n; echo 2 > data/n/y.csv", "runs: data/n/y.csv is new", "skipped"),
        ("mv data/x.csv data/z.csv", "runs: data/z.csv is new, and 1 more", "skipped"),
        ("rm all.txt", "runs: all.txt is missing", "skipped"),
        ("echo >> all.txt", "runs: all.txt changed", "skipped"),
        ("rm model.txt", "skipped", "runs: model.txt is missing"),
        ("touch data/x.csv fdl.yml", "skipped", "skipped"),
        ("cp data/x.csv c; mv c data/x.csv", "skipped", "skipped"),
        ("mv data/x.csv d; ln -s ../d data/x.csv", "skipped", "skipped"),
        ("sed -i s/preparing/again/ fdl.yml", "runs: the command changed", "skipped"),
        ("echo not a csv > data/note.txt", "skipped", "skipped"),
    ],
)  # fmt: skip
def test_what_changed_is_named_and_the_rest_is_skipped(project, fdl, change, prepare, train):
    folder = project(CHAIN)
    assert fdl("train").exit == 0
    subprocess.run(["sh", "-c", change], cwd=folder, check=True)
    prepared, trained = told(fdl("train"))
    assert prepared.startswith(f"prepare {prepare}")
    assert trained.startswith(f"train {train}")
    assert all(" skipped: " in line for line in told(fdl("train")))


def test_variables_of_the_shell_and_of_the_manifest_count(project, fdl):
    project(CHAIN)
    assert fdl("train").exit == 0
    assert told(fdl("train", env={"SEED": "1"}))[1] == "train runs: env:SEED changed"
    assert " skipped: " in told(fdl("train", env={"SEED": "1"}))[1]
    assert " skipped: " in told(fdl("train", env={"SEED": "1", "OTHER": "2"}))[1]
    assert told(fdl("train"))[1] == "train runs: env:SEED changed"
    manifest = "commands: {t: {run: 'true', inputs: data, env: {LR: LRATE}}}"
    project({"fdl.yml": manifest.replace("LRATE", "0.1")})
    assert told(fdl("t")) == ["t runs: it has not run here yet"]
    project({"fdl.yml": manifest.replace("LRATE", "0.2")})
    assert told(fdl("t")) == ["t runs: the command changed"]
    assert told(fdl("t", env={"LR": "9"})) == ["t runs: the command changed"]


def test_typed_arguments_make_another_command(project, fdl):
    project({"fdl.yml": "commands: {t: {run: echo, inputs: fdl.yml}}"})
    assert fdl("t", "--", "a").out == "a\n"
    other = fdl("t", "--", "b")
    assert (other.out, told(other)) == (
        "b\n",
        ["t runs: it has not run here with these arguments yet"],
    )
    assert " skipped: " in told(fdl("t", "--", "a"))[0]
    assert " skipped: " in told(fdl("t", "--", "b"))[0]


def test_a_preset_and_an_overlay_have_a_record_of_their_own(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: {inputs: train/*.txt}}",
            "fdl.ci.yml": "{}",
            "train/fdl.yml": "entry: echo\ncommands: {quick: {options: {epochs: 1}}}",
            "train/x.txt": "x",
        }
    )
    for words in (["train"], ["train", "quick"], ["ci", "train"]):
        assert "runs: it has not run" in told(fdl(*words))[0]
    for words in (["train"], ["train", "quick"], ["ci", "train"]):
        assert "skipped" in told(fdl(*words))[0]


def test_a_folder_counts_with_every_file_below_it(project, fdl):
    folder = project(
        {"fdl.yml": "commands: {t: {run: 'true', inputs: src}}", "src/a/b/c.py": "1\n"}
    )
    (folder / "src/link").symlink_to("..")
    assert fdl("t").exit == 0
    project({"src/a/__pycache__/c.pyc": "tools write these", "src/.git/HEAD": "x"})
    assert " skipped: " in told(fdl("t"))[0]
    project({"src/a/.hidden": "new"})
    assert told(fdl("t")) == ["t runs: src/a/.hidden is new"]


def test_what_tools_write_does_not_count_where_a_pattern_matches_it(project, fdl):
    names = ("src/*", "src/**", "src/*/*")
    commands = ", ".join(
        f"t{at}: {{run: 'true', inputs: '{name}'}}" for at, name in enumerate(names)
    )
    project({"fdl.yml": f"commands: {{{commands}}}", "src/a.py": "1\n", "src/b/c.py": "1\n"})
    for at in range(len(names)):
        assert fdl(f"t{at}").exit == 0
    project({"src/__pycache__/a.pyc": "tools write this", "src/b/__pycache__/c.pyc": "and this"})
    for at, name in enumerate(names):
        assert " skipped: " in told(fdl(f"t{at}"))[0], name


def test_what_a_command_writes_is_not_its_input(project, fdl):
    project(
        {"fdl.yml": "commands: {t: {run: date +%N > src/made, inputs: src, outputs: src/made}}",
         "src/a": "1\n"}
    )  # fmt: skip
    assert fdl("t").exit == 0
    assert " skipped: " in told(fdl("t"))[0]


def test_patterns_start_at_the_manifest(project, fdl):
    project(
        {
            "fdl.yml": "commands: {sub: }",
            "sub/fdl.yml": """
            commands:
              t: {run: cp in.txt ../out.txt, inputs: in.txt, outputs: ../out.txt}
            """,
            "sub/in.txt": "1\n",
        }
    )
    assert fdl("sub", "t").exit == 0
    assert " skipped: " in told(fdl("sub", "t"))[0]
    project({"out.txt": "2\n"})
    assert told(fdl("sub", "t")) == ["sub t runs: out.txt changed"]


def test_a_name_with_brackets_is_itself_before_it_is_a_pattern(project, fdl):
    project({"fdl.yml": "commands: {t: {run: 'true', inputs: 'x[1].txt'}}", "x[1].txt": "1\n"})
    assert fdl("t").exit == 0
    project({"x[1].txt": "2\n"})
    assert told(fdl("t")) == ["t runs: x[1].txt changed"]


def test_a_failed_run_runs_again_and_forgets_nothing(project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: '[ ! -e fail ]', inputs: x}}", "x": "1\n"})
    assert fdl("t").exit == 0
    record = (next((folder / ".fdl/state").glob("t.*"))).read_text()
    project({"fail": ""})
    assert fdl("--force", "t").exit == 1
    assert told(fdl("t")) == ["t runs: its last run did not succeed"]
    (folder / "fail").unlink()
    assert told(fdl("t")) == ["t runs: its last run did not succeed"]
    assert " skipped: " in told(fdl("t"))[0]
    again = json.loads((next((folder / ".fdl/state").glob("t.*"))).read_text())
    assert again["inputs"] == json.loads(record)["inputs"]


def test_force_runs_the_command_itself_anyway_and_not_what_it_needs(project, fdl):
    project(CHAIN)
    fdl("train")
    done = fdl("--force", "train")
    assert done.out == "training\n"
    assert told(done)[1] == "train runs: --force"


def test_a_pattern_that_matches_nothing_has_a_place_and_a_suggestion(project, fdl):
    folder = project(
        {
            "fdl.yml": """
            commands:
              t: {run: touch ran, inputs: [data/x.csv, daat/x.csv]}
              u: {run: touch ran, inputs: data/x.cvs}
              v: {run: touch ran, inputs: "data/*.json"}
            """,
            "data/x.csv": "1\n",
        }
    )
    t, u, v = fdl("t"), fdl("u"), fdl("v")
    assert (t.exit, u.exit, v.exit) == (1, 1, 1)
    assert t.err.startswith("error: fdl.yml:2:44: input `daat/x.csv` of `fdl t` matches no file\n")
    assert "did you mean `data`?" in t.err
    assert "did you mean `data/x.csv`?" in u.err
    assert f"patterns start at {folder}" in v.err
    assert not (folder / "ran").exists()


def test_arguments_that_a_needed_command_refuses_are_told_with_their_place(project, fdl):
    project({"fdl.yml": "commands: {t: {run: 'true', needs: u x}, u: {run: 'true'}}"})
    done = fdl("t")
    assert done.exit == 1
    assert done.err.startswith("error: fdl.yml:1:36: `fdl t` needs `u x`: arguments of `fdl u` go ")


def test_an_output_that_was_not_written_is_a_warning_and_runs_again(project, fdl):
    project({"fdl.yml": "commands: {t: {run: 'true', inputs: fdl.yml, outputs: modle.pt}}"})
    done = fdl("t")
    assert done.exit == 0
    assert "warning: `fdl t` did not write its output `modle.pt`" in done.err
    assert "fdl t runs: modle.pt is missing\n" in fdl("t").err


def test_a_command_without_inputs_always_runs(project, fdl):
    folder = project(
        {"fdl.yml": "commands: {t: {run: touch out, outputs: out, needs: u}, u: {run: 'true'}}"}
    )
    for _ in range(2):
        done = fdl("t")
        assert (done.exit, done.err) == (0, "")
    assert not (folder / ".fdl/state").exists()


def test_a_state_that_cannot_be_read_or_written_costs_only_the_skipping(project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: 'true', inputs: fdl.yml}}"})
    assert fdl("t").exit == 0
    for text in ("", "[]", "{}", '{"format": 1}', "null", '{"a": [1]}'):
        for one in (folder / ".fdl/state").iterdir():
            one.write_text(text)
        done = fdl("t")
        assert (done.exit, told(done)) == (0, ["t runs: it has not run here yet"])
    subprocess.run(["rm", "-r", ".fdl/state"], cwd=folder, check=True)
    project({".fdl/state": "a file"})
    done = fdl("t")
    assert done.exit == 0
    assert "warning: " in done.err


def test_two_calls_at_once_leave_whole_records(project, fdl):
    names = [f"t{number}" for number in range(6)]
    entries = "\n".join(f"  {name}: {{run: 'true', inputs: in}}" for name in names)
    folder = project({"fdl.yml": "commands:\n" + entries, **{f"in/{n}": "x" for n in range(50)}})
    calls = [fork_server.start("-m", "fdl", name, cwd=folder, abrupt=True) for name in names * 2]
    for call in calls:
        with call:
            _, err = call.communicate(timeout=PATIENCE)
        assert (call.returncode, "warning" in err) == (0, False)
    for one in (folder / ".fdl/state").iterdir():
        json.loads(one.read_text())
    assert all(" skipped: " in told(fdl(name))[0] for name in names)


def test_an_unchanged_file_is_not_read_again(project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: 'true', inputs: big}}", "big": "x"})
    pass_a_tick()
    assert fdl("t").exit == 0
    # Another digest in the cache would be noticed only if the file were read.
    cache = folder / ".fdl/state/files.json"
    known = json.loads(cache.read_text())
    known["big"][4] = "0" * 32
    cache.write_text(json.dumps(known))
    assert told(fdl("t")) == ["t runs: big changed"]


# why --run ----------------------------------------------------------------------------------


def test_why_run_explains_without_running(project, fdl):
    folder = project(CHAIN)
    fresh = fdl("why", "--run", "train")
    assert fresh.out.splitlines() == [
        "fdl prepare  will run  it has not run here yet",
        "fdl train    will run  an input does not exist yet, and `fdl prepare` runs before",
    ]
    assert not (folder / ".fdl/state").exists()
    fdl("train")
    lines = fdl("why", "--run", "train").out.splitlines()
    assert lines[0].startswith("fdl prepare  will skip  inputs unchanged since ")
    assert lines[1].startswith("fdl train    will skip  inputs unchanged since ")
    project({"data/x.csv": "2\n"})
    changed = fdl("why", "--run", "--json", "train")
    document = json.loads(changed.out)
    assert document["schema_version"] == 1
    assert document["commands"] == [
        {
            "command": ["prepare"],
            "asked": False,
            "runs": True,
            "reason": "data/x.csv changed",
        },
        {
            "command": ["train"],
            "asked": True,
            "runs": None,
            "reason": "`fdl prepare` runs before, and may change its inputs",
        },
    ]
    assert (folder / "all.txt").read_text() == "1\n"


def test_why_run_takes_arguments_environments_and_force(project, fdl):
    project({"fdl.yml": "commands: {t: {run: echo, inputs: fdl.yml}}", "fdl.ci.yml": "{}"})
    fdl("t", "--", "a")
    assert "will skip" in fdl("why", "--run", "t", "--", "a").out
    assert "will run" in fdl("why", "--run", "ci", "t", "--", "a").out
    assert "--force" in fdl("--force", "why", "--run", "t", "--", "a").out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [([], 2, "no command is given"), (["tarin"], 1, "did you mean `fdl train`?")],
)
def test_why_run_of_nothing_is_refused(project, fdl, words, code, message):
    project(CHAIN)
    done = fdl("why", "--run", *words)
    assert (done.exit, done.out) == (code, "")
    assert message in done.err


def test_a_command_of_the_project_may_be_called_why_run(project, fdl):
    project({"fdl.yml": "commands: {why-run: {run: echo mine}}"})
    assert fdl("why-run").out == "mine\n"


# Manifests ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["3", "{a: b}", "[1]", "[[a]]", "''"])
def test_other_values_are_refused(project, fdl, value):
    project({"fdl.yml": f"commands: {{t: {{run: 'true', needs: {value}}}}}"})
    done = fdl("t")
    assert done.exit == 1
    assert done.err.startswith("error: fdl.yml:1:")
    assert "must be text, or a list of texts" in done.err


def test_a_command_without_these_keys_loads_none_of_it(project, fdl):
    folder = project({"fdl.yml": "commands: {t: {run: 'true'}}"})
    fdl("t")
    code = (
        "import sys; from fdl.cli.entry import main; main(['t']);"
        "ours = ('fdl.run.chain', 'fdl.run.pool', 'fdl.run.freshness');"
        "print([one for one in sys.modules if one.startswith(ours)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=os.environ
    )
    assert done.stdout == "[]\n"


# What shows it ------------------------------------------------------------------------------


def test_help_and_list_show_it(project, fdl):
    project(CHAIN)
    page = [line.split() for line in fdl("train", "--help").out.splitlines()]
    assert ["needs", "prepare", "fdl.yml:8:12"] in page
    assert ["inputs", "all.txt,", "env:SEED", "fdl.yml:9:13"] in page
    assert ["outputs", "model.txt", "fdl.yml:10:14"] in page
    assert "Dependencies" in fdl("prepare", "--help").out
    assert fdl("list").out.splitlines()[1].endswith("(needs prepare)")
    commands = json.loads(fdl("list", "--json").out)["commands"]
    assert [one["needs"] for one in commands] == [[], ["prepare"]]


def test_the_page_of_a_preset_shows_what_its_folder_needs(project, fdl):
    project(
        {
            "fdl.yml": "commands: {get: {run: 'true'}, train: {needs: get, inputs: [train]}}",
            "train/fdl.yml": "entry: echo\ncommands: {q: {options: {a: 1}, inputs: fdl.yml}}",
        }
    )
    assert "needs   get    fdl.yml:1:47" in fdl("train", "--help").out
    page = [line.split() for line in fdl("train", "q", "--help").out.splitlines()]
    assert ["needs", "get", "fdl.yml:1:47"] in page
    assert ["inputs", "fdl.yml", "train/fdl.yml:2:41"] in page


def test_completion_offers_further_commands_behind_jobs(project, fdl):
    project(
        {
            "fdl.yml": "commands: {a: {run: 'true'}, b: {run: 'true'}, sub: }",
            "sub/fdl.yml": "commands: {fast: {run: 'true'}, slow: {run: 'true'}}",
        }
    )

    def offered(*words):
        return fdl("__complete", "bash", "--", *words).out.splitlines()

    assert offered("--jobs", "2", "a", "") == ["b", "sub"]
    assert offered("--jobs=2", "b", "sub/fast", "sub/") == ["sub/slow"]
    assert offered("a", "") == ["--"]
    assert offered("--fo") == ["--force"]


def test_declared_arguments_have_a_record_of_their_own(project, fdl):
    folder = project(
        {
            "fdl.yml": """
            commands:
              data: {run: 'echo "made $size" >> made', args: {size: 1}, inputs: x}
              both: {needs: [data --size 7, data --size 9], run: 'true'}
            """,
            "x": "",
        }
    )
    fdl("both")
    assert (folder / "made").read_text() == "made 7\nmade 9\n"
    for words in (["--size", "7"], ["--size", "9"]):
        assert "fdl data skipped" in fdl("data", *words).err
    assert "runs: it has not run here with these arguments yet" in fdl("data").err
    # The same value, typed or not.
    assert "fdl data skipped" in fdl("data", "--size", "1").err
