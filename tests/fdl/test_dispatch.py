"""From the words typed to the command they name."""

import json
import sys

import pytest

SHOW = "printf '%s\\n'"


@pytest.mark.case("cli", 9)
def test_run_and_path_together_are_refused_and_help_still_works(project, fdl):
    project({"fdl.yml": "commands:\n  both:\n    run: a\n    path: b\n  good: {run: echo fine}\n"})
    done = fdl("both")
    assert done.exit == 1
    assert done.err.startswith("error: fdl.yml:4:11: command `fdl both`: `run` and `path`")
    page = fdl("--help")
    assert page.exit == 0
    assert "both" in page.out
    assert fdl("good").out == "fine\n"


def test_a_page_describes_commands_in_the_words_of_their_own_manifests(project, fdl):
    project(
        {
            "fdl.yml": "commands: {tools: }",
            "tools/fdl.yml": "commands: {lint: , gone: }",
            "tools/lint/fdl.yml": "description: Check the style\nentry: python lint.py",
        }
    )
    page = fdl("tools", "--help")
    assert page.exit == 0, page.err
    rows = [line.split() for line in page.out.splitlines()]
    assert ["lint", "Check", "the", "style"] in rows
    assert any(row[:1] == ["gone"] for row in rows)


def test_without_a_python_on_the_path_an_entry_runs_with_that_of_fdl(project, fdl, tmp_path):
    project(
        {
            "fdl.yml": "commands: {a: , b: }",
            "a/fdl.yml": "entry: python main.py",
            "b/fdl.yml": "entry: sh main.sh",
        }
    )
    (tmp_path / "bin").mkdir()
    for name, program in (("a", sys.executable), ("b", "sh")):
        session = fdl("--dry-run", "--json", name, env={"PATH": str(tmp_path / "bin")})
        assert session.exit == 0, session.err
        assert json.loads(session.out)["argv"][0] == program


@pytest.mark.case("cli", 10)
@pytest.mark.parametrize(
    ("spec", "word"),
    [("{path: sub, docker: dev}", "docker"), ("{path: sub, append: -x}", "append")],
)
def test_keys_that_need_run_are_refused_without_it(project, fdl, spec, word):
    project({"fdl.yml": f"commands: {{c: {spec}}}", "sub/fdl.yml": "entry: echo hi"})
    done = fdl("c")
    assert (done.exit, done.out) == (1, "")
    assert f"`{word}` needs `run`" in done.err


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{run: a, entry: b}", "`run` and `entry` exclude each other"),
        ("{run: a, training: {lr: 1}}", "`training` has no effect beside `run`"),
        ("{path: p, options: {a: 1}}", "`options` has no effect beside `path`"),
        ("{entry: p, ddp: {}}", "`ddp` has no effect beside `entry`"),
    ],
)
def test_contradicting_keys_name_command_keys_and_place(project, fdl, spec, words):
    project({"fdl.yml": "commands: {sub: }", "sub/fdl.yml": f"commands:\n  c: {spec}\n"})
    done = fdl("sub", "c")
    assert done.exit == 1
    assert done.err.startswith("error: sub/fdl.yml:2:")
    assert f"command `fdl sub c`: {words}" in done.err


@pytest.mark.case("cli", 13)
def test_an_empty_entry_is_a_folder_of_its_name(project, fdl):
    folder = project({"fdl.yml": "commands:\n  x:\n  y: {description: Why}\n"})
    project({"x/fdl.yml": "entry: echo from x"})
    assert fdl("x").out == "from x\n"
    done = fdl("y")
    assert (done.exit, done.out) == (1, "")
    assert f"no fdl.yml found in {folder / 'y'}" in done.err
    assert "`fdl y` is declared at fdl.yml:3:" in done.err


@pytest.mark.case("cli", 14)
def test_a_preset_needs_an_entry_in_its_manifest(project, fdl):
    preset = "commands: {quick: {training: {epochs: 1}}}\n"
    project({"fdl.yml": preset})
    done = fdl("quick")
    assert (done.exit, done.out) == (1, "")
    assert "`fdl quick` is a preset, but its manifest has no `entry`" in done.err
    project({"fdl.yml": f"entry: {SHOW}\n{preset}"})
    done = fdl("quick")
    assert (done.exit, done.out) == (0, "--epochs\n1\n")


@pytest.mark.case("cli", 26)
def test_two_folders_deep_a_preset_runs_the_inner_entry(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {a: }",
            "a/fdl.yml": "entry: echo outer\ncommands: {b: }",
            "a/b/fdl.yml": f"entry: {SHOW}\ncommands: {{quick: {{training: {{epochs: 1}}}}}}",
        }
    )
    assert fdl("a", "b", "quick").out == "--epochs\n1\n"
    plan = json.loads(fdl("--dry-run", "--json", "a", "b", "quick").out)
    assert (plan["cwd"], plan["preset"]) == (str(folder / "a/b"), "quick")
    assert plan["command"] == ["a", "b", "quick"]
    assert plan["root"] == str(folder)


def test_depth_is_unlimited_and_help_and_hints_name_the_whole_path(project, fdl):
    files = {"fdl.yml": "commands: {a: }"}
    path = "a"
    for name in "bcde":
        files[f"{path}/fdl.yml"] = f"commands: {{{name}: }}"
        path += f"/{name}"
    files[f"{path}/fdl.yml"] = "commands: {t: {run: echo deep}}"
    project(files)
    words = ["a", "b", "c", "d", "e", "t"]
    assert fdl(*words).out == "deep\n"
    assert "fdl a b c d e t -- -k x" in fdl(*words, "-k", "x").err
    assert fdl(*words, "--help").out.startswith("fdl a b c d e t\n")
    assert fdl("a", "b", "--help").out.startswith("fdl a b\n")


@pytest.mark.case("cli", 28)
def test_a_folder_without_entry_shows_its_commands_or_says_it_has_nothing(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {sub: , bare: }",
            "sub/fdl.yml": "commands: {t: {run: echo hi, description: Say hi}}",
            "bare/fdl.yml": "description: nothing here\n",
        }
    )
    page = fdl("sub")
    assert (page.exit, page.err) == (0, "")
    assert "Usage: fdl sub [<command>]" in page.out
    assert "Say hi" in page.out
    done = fdl("bare")
    assert (done.exit, done.out) == (1, "")
    assert f"the manifest in {folder / 'bare'} has no `entry`" in done.err


def test_a_word_that_fits_nothing_is_unknown_with_the_nearest_name(project, fdl):
    project(
        {
            "fdl.yml": "commands: {hello: {run: echo}, sub: }",
            "sub/fdl.yml": "commands: {quick: {run: echo}}",
        }
    )
    done = fdl("helo", "-x")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith("error: unknown command: helo\nhint: did you mean `fdl hello`?\n")
    assert "Usage: fdl" in done.err
    done = fdl("sub", "quik")
    assert done.exit == 1
    assert "error: unknown command: sub quik\nhint: did you mean `fdl sub quick`?\n" in done.err
    assert "Usage: fdl sub [<command>]" in done.err
    assert "hint" not in fdl("zzzzz").err
    assert "did you mean `fdl init`?" in fdl("inti").err
    assert "error: unknown option: --quite\nhint: did you mean `--quiet`?" in fdl("--quite").err


def test_in_a_folder_of_a_project_the_commands_of_the_project_are_found(project, fdl):
    root = project(
        {
            "fdl.yml": "commands: {train: {path: train}}",
            "train/fdl.yml": "entry: echo\ncommands: {quick: {training: {epochs: 1}}}",
        }
    )
    done = fdl("train", "quick", cwd="train")
    assert done.exit == 1
    above = f"hint: `train` is a command of the project in {root}: type it there\n"
    assert done.err.startswith(f"error: unknown command: train\n{above}")
    assert above in fdl("config", "show", "train", cwd="train").err
    assert "is a command of the project" not in fdl("trail", "quick", cwd="train").err


def test_a_flag_for_a_folder_without_entry_is_no_unknown_command(project, fdl):
    project({"fdl.yml": "commands: {sub: }", "sub/fdl.yml": "commands: {t: {run: echo}}"})
    done = fdl("sub", "--lr", "1")
    assert done.exit == 1
    assert "has no `entry`" in done.err


def test_outside_any_project_help_works_and_commands_say_what_to_do(fdl):
    page = fdl()
    assert page.exit == 0
    assert "init" in page.out
    done = fdl("train")
    assert (done.exit, done.out) == (1, "")
    assert "unknown command: train" in done.err
    assert "`fdl init NAME` starts a project" in done.err


def test_a_broken_manifest_is_reported_as_such_and_help_still_lists_built_ins(project, fdl):
    project({"fdl.yml": "commands:\n  a: {run: x}\n  a: {run: y}\n"})
    done = fdl("a")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith("error: fdl.yml:3:")
    assert "unknown command" not in done.err
    page = fdl("--help")
    assert page.exit == 0
    assert "Built-in commands" in page.out
    assert page.err == done.err


def test_a_broken_child_stops_only_its_own_command(project, fdl):
    project(
        {
            "fdl.yml": "commands: {bad: , good: {run: echo fine}}",
            "bad/fdl.yml": "entry: {a: b}",
        }
    )
    assert fdl("good").out == "fine\n"
    assert fdl("--help").exit == 0
    done = fdl("bad")
    assert done.exit == 1
    assert "bad/fdl.yml:1:" in done.err


def test_paths_are_relative_to_the_declaring_manifest_and_may_be_absolute(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {a: }",
            "a/fdl.yml": "commands:\n  near: {path: ../other}\n  far: {path: FAR}\n",
            "other/fdl.yml": "entry: pwd",
        }
    )
    child = folder / "a/fdl.yml"
    child.write_text(child.read_text().replace("FAR", str(folder / "other")))
    assert fdl("a", "near").out == fdl("a", "far").out == f"{folder / 'other'}\n"


def test_an_entry_in_the_parents_command_replaces_the_childs(project, fdl):
    folder = project(
        {
            "fdl.yml": f'commands:\n  sub: {{entry: "{SHOW}"}}\n  p: {{path: sub, entry: pwd}}\n',
            "sub/fdl.yml": "entry: echo own\ncommands: {quick: {training: {seed: 3}}}",
        }
    )
    assert fdl("sub", "quick", "x").out == "--seed\n3\nx\n"
    assert fdl("p").out == f"{folder / 'sub'}\n"


def test_a_folder_below_the_project_is_a_project_of_its_own(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {bench: }",
            "bench/fdl.yml": "entry: printenv FDL_PROJECT_ROOT\ncommands: {quick: {training: {}}}",
        }
    )
    assert fdl("bench", "quick").out == f"{folder}\n"
    assert fdl("quick", cwd="bench").out == f"{folder / 'bench'}\n"


def test_an_example_is_copied_by_what_runs_and_by_nothing_else(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {sub: }",
            "sub/fdl.yml.example": "entry: echo hi\ncommands: {t: {run: echo t}}",
        }
    )
    real = folder / "sub/fdl.yml"
    for typed in (("sub", "--help"), ("--dry-run", "sub"), ("--help",), ("sub", "t", "x")):
        fdl(*typed)
        assert not real.exists()
    done = fdl("sub")
    assert (done.exit, done.out) == (0, "hi\n")
    assert real.read_text() == (folder / "sub/fdl.yml.example").read_text()
    assert "fdl.yml.example" in done.err


def test_the_example_of_a_needed_command_is_copied_as_well(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {a: {run: echo a, needs: sub}, sub: }",
            "sub/fdl.yml.example": "entry: echo hi",
        }
    )
    assert fdl("-n", "a").exit == 0
    assert not (folder / "sub/fdl.yml").exists()
    done = fdl("a")
    assert (done.exit, done.out) == (0, "hi\na\n")
    assert (folder / "sub/fdl.yml").exists()


def test_the_plan_of_a_first_start_names_the_copy_of_the_example(project, fdl):
    project(
        {
            "fdl.yml": "commands: {sub: }",
            "sub/fdl.yml.example": "entry: printenv FDL_PLAN\ntraining: {}\n",
        }
    )
    done = fdl("sub")
    assert '"origin":"sub/fdl.yml:1:8"' in done.out
    assert ".example" not in done.out


def test_built_ins_win_over_commands_of_the_same_name(project, fdl):
    project({"fdl.yml": "commands: {config: {run: echo mine}}"})
    assert "mine" not in fdl("config").out
    assert "unreachable" in fdl("--help").out


def test_an_unknown_sub_command_of_a_built_in_shows_its_help_on_stderr(fdl):
    done = fdl("config", "shwo")
    assert (done.exit, done.out) == (1, "")
    assert "unknown command: config shwo\nhint: did you mean `fdl config show`?" in done.err
    assert "Usage: fdl config" in done.err


def test_built_in_groups_and_their_help(fdl):
    bare, asked = fdl("config"), fdl("config", "--help")
    assert (bare.exit, bare.err) == (0, "")
    assert bare.out == asked.out
    assert fdl("init", "-h").out.startswith("Usage: fdl init")
    assert fdl("--help", "init").out == fdl("init", "--help").out
    refused = fdl("init", "--nope")
    assert (refused.exit, refused.out) == (2, "")
    assert "--nope" in refused.err
