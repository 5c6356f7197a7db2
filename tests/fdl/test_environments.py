"""Environment overlays, as they are typed."""

import json

import pytest

BASE = """
    commands:
      t: {run: "echo base"}
      show: {run: 'printf "%s\\n" "$FDL_ENV"'}
    """


def overlay(word: str) -> str:
    return f"commands: {{t: {{run: echo {word}}}}}\n"


@pytest.fixture(name="many")
def _many(project):
    """A project with three environments."""
    return project(
        {"fdl.yml": BASE, **{f"fdl.{env}.yml": overlay(env) for env in ("prod", "stage", "ci")}}
    )


@pytest.mark.case("cli", 33)
@pytest.mark.usefixtures("many")
def test_the_flag_beats_the_variable_which_beats_the_first_word(fdl):
    done = fdl("ci", "--env", "prod", "t", env={"FDL_ENV": "stage"})
    assert (done.exit, done.out) == (1, "")
    assert "unknown command: ci" in done.err, "the first word stays the command"
    assert fdl("t", "--env", "prod", env={"FDL_ENV": "stage"}).out == "prod\n"
    assert fdl("--env=prod", "t").out == "prod\n"
    assert fdl("t", env={"FDL_ENV": "stage"}).out == "stage\n"
    assert "unknown command: ci" in fdl("ci", "t", env={"FDL_ENV": "stage"}).err
    assert fdl("ci", "t", env={"FDL_ENV": ""}).out == "ci\n"
    assert fdl("t").out == "base\n"


@pytest.mark.case("cli", 33)
def test_a_command_named_like_a_lower_candidate_keeps_its_word(project, fdl):
    project(
        {
            "fdl.yml": "commands: {ci: }",
            "ci/fdl.yml": "commands: {t: {run: echo base}}",
            "ci/fdl.prod.yml": "commands: {t: {run: echo the command ci under prod}}",
            "fdl.prod.yml": "",
            "fdl.stage.yml": "",
            "fdl.ci.yml": "",
        }
    )
    done = fdl("ci", "--env", "prod", "t", env={"FDL_ENV": "stage"})
    assert (done.exit, done.out) == (0, "the command ci under prod\n")


@pytest.mark.case("cli", 34)
@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        (("t", "--env"), "`--env` needs the name of an environment"),
        (("t", "--env="), "`--env=` names no environment"),
        (("--env", "--help"), "`--help` is a flag"),
        (
            ("--env", "ci", "t", "--env=prod"),
            "`--env` was given twice: ci and prod\nhint: --env ci,prod",
        ),
        (("--env", "ci", "--env", "ci", "t"), "given twice"),
    ],
)
@pytest.mark.usefixtures("many")
def test_a_flag_without_one_clear_name_is_refused(fdl, typed, reason):
    done = fdl(*typed)
    assert (done.exit, done.out) == (1, "")
    assert reason in done.err


@pytest.mark.case("cli", 35)
@pytest.mark.usefixtures("many")
def test_the_first_word_selects_an_environment(fdl):
    assert fdl("ci", "t").out == "ci\n"
    page = fdl("ci")
    assert page.exit == 0
    assert "t     echo ci\n" in page.out
    assert "ci (active)" in page.out
    assert fdl("ci", "show").out == "\n", "the choice is not handed to children"


@pytest.mark.case("cli", 35)
def test_a_first_word_that_is_a_command_as_well_is_ambiguous(project, fdl):
    project({"fdl.yml": "commands: {ci: {run: echo command}}", "fdl.ci.yml": overlay("ci")})
    for typed in (("ci",), ("ci", "t"), ("ci", "--help")):
        done = fdl(*typed)
        assert (done.exit, done.out) == (1, "")
        assert "`ci` is ambiguous: a command of the manifest" in done.err
        assert "fdl.ci.yml" in done.err
        assert "rename one of them" in done.err
    assert fdl("--env", "ci", "t").out == "ci\n"


@pytest.mark.case("cli", 35)
def test_a_first_word_without_overlay_is_an_unknown_command(project, fdl):
    project({"fdl.yml": BASE})
    done = fdl("ci", "t")
    assert done.exit == 1
    assert "unknown command: ci" in done.err


@pytest.mark.parametrize("name", ["config", "version", "__complete", "init"])
def test_an_environment_named_like_a_built_in_is_ambiguous(project, fdl, name):
    project({"fdl.yml": BASE, f"fdl.{name}.yml": overlay("overlay")})
    if name == "__complete":
        # It answers keystrokes, so it never fails; `--env` reaches the environment.
        assert fdl("--env", name, "t").out == "overlay\n"
        return
    done = fdl(name, "show")
    assert (done.exit, done.out) == (1, "")
    assert f"`{name}` is ambiguous: a built-in command" in done.err
    assert fdl("--env", name, "t").out == "overlay\n"


def test_what_only_an_overlay_defines_does_not_make_its_name_ambiguous(project, fdl):
    project({"fdl.yml": BASE, "fdl.ci.yml": "commands: {ci: {run: echo inner}}"})
    assert fdl("ci", "ci").out == "inner\n"


@pytest.mark.parametrize(
    ("typed", "variable", "asked"),
    [
        (("--env", "nope", "t"), "", "--env nope"),
        (("t",), "nope", "FDL_ENV=nope"),
        (("config", "show"), "nope", "FDL_ENV=nope"),
    ],
)
def test_an_environment_that_does_not_exist_is_named_with_those_that_do(
    many, fdl, typed, variable, asked
):
    done = fdl(*typed, env={"FDL_ENV": variable})
    assert (done.exit, done.out) == (1, "")
    assert f"`{asked}`: there is no fdl.nope.yml in {many}" in done.err
    assert "environments here: ci, prod, stage" in done.err


def test_an_environment_without_any_manifest_names_the_expected_file(fdl):
    done = fdl("--env", "ci", "t")
    assert done.exit == 1
    assert "no fdl.yml here or above, so no fdl.ci.yml" in done.err


@pytest.mark.usefixtures("many")
def test_a_variable_of_another_project_breaks_neither_version_nor_help(fdl):
    for typed in (("--version",), ("version",), ("completions", "bash")):
        done = fdl(*typed, env={"FDL_ENV": "nope"})
        assert (done.exit, done.err) == (0, "")
    page = fdl("--help", env={"FDL_ENV": "nope"})
    assert page.exit == 0
    assert "echo base" in page.out
    assert "FDL_ENV=nope" in page.err


@pytest.mark.parametrize("name", ["../prod", "a/b"])
@pytest.mark.usefixtures("many")
def test_an_environment_is_a_name_and_no_path(fdl, name):
    assert fdl("--env", name, "t").exit == 1
    assert "unknown command" in fdl(name, "t").err


def test_children_have_overlays_of_their_own_and_may_lack_them(project, fdl):
    project(
        {
            "fdl.yml": "commands: {a: , b: }",
            "fdl.ci.yml": "",
            "a/fdl.yml": "entry: echo a\ntraining: {epochs: 5}",
            "a/fdl.ci.json": '{"training": {"epochs": 1}}',
            "b/fdl.yml": "entry: echo b\ntraining: {epochs: 5}",
        }
    )
    assert fdl("a").out == "a --epochs 5\n"
    assert fdl("ci", "a").out == "a --epochs 1\n"
    assert fdl("ci", "b").out == "b --epochs 5\n"


def test_an_overlay_replaces_the_entry_of_a_child(project, fdl):
    project(
        {
            "fdl.yml": "commands: {train: {path: ./train}}",
            "fdl.ci.yml": "commands: {train: {entry: echo faked}}",
            "train/fdl.yml": """
                entry: echo real
                training: {epochs: 5}
                commands: {q: {options: {a: 1}}}
                """,
        }
    )
    assert fdl("train").out == "real --epochs 5\n"
    assert fdl("ci", "train").out == "faked --epochs 5\n"
    assert fdl("ci", "train", "q").out == "faked --epochs 5 --a 1\n"
    plan = json.loads(fdl("--dry-run", "--json", "--env", "ci", "train").out)
    assert plan["origin"].startswith("fdl.ci.yml:1:")


def test_entry_beside_run_is_refused(project, fdl):
    project(
        {
            "fdl.yml": "commands: {t: {run: 'true'}}",
            "fdl.ci.yml": "commands: {t: {entry: echo}}",
        }
    )
    done = fdl("ci", "t")
    assert done.exit == 1
    assert "fdl.ci.yml:1:23" in done.err
    assert "`run` and `entry` exclude each other" in done.err


def test_an_overlay_can_delete_and_add_commands(project, fdl):
    project(
        {
            "fdl.yml": BASE,
            "fdl.ci.yml": "commands: {t: ~, extra: {run: echo extra}}",
        }
    )
    assert "unknown command: t" in fdl("ci", "t").err
    assert fdl("ci", "extra").out == "extra\n"
    assert "unknown command: extra" in fdl("extra").err


def test_the_stronger_layer_decides_between_mode_and_policy(project, fdl):
    project(
        {
            "fdl.yml": """
                entry: echo
                ddp: {mode: sync, anchor: 3}
                commands: {p: {options: {x: 1}}}
                """,
            "fdl.ci.yml": "ddp: {policy: async, backend: cpu}",
            "fdl.up.yml": "inherit-from: fdl.ci.yml\nddp: {mode: solo-1}",
        }
    )
    assert fdl("p").out == "--mode sync --anchor 3 --x 1\n"
    assert fdl("ci", "p").out == "--policy async --backend cpu --anchor 3 --x 1\n"
    assert fdl("up", "p").out == "--mode solo-1 --anchor 3 --x 1\n"


def test_a_mistake_in_an_overlay_is_told_with_its_own_place(project, fdl):
    project({"fdl.yml": BASE, "fdl.ci.yml": "commands:\n  t: {rum: x}\n"})
    done = fdl("ci", "t")
    assert done.exit == 1
    assert "fdl.ci.yml:2:7: unknown key `commands.t.rum`; did you mean `run`?" in done.err
    assert fdl("t").out == "base\n", "without the environment nobody asks for it"


def test_layers_may_share_what_is_required(project, fdl):
    project(
        {
            "fdl.yml": """
                entry: echo
                ddp: {speed_hint: {slow_rank: 1}}
                commands: {p: {options: {x: 1}}}
                """,
            "fdl.ci.yml": "ddp: {speed_hint: {ratio: 2}}",
        }
    )
    assert fdl("ci", "p").out == "--speed-hint 1:2 --x 1\n"
    done = fdl("p")
    assert done.exit == 1
    assert "fdl.yml:2:19: `ddp.speed_hint` needs `ratio`" in done.err


@pytest.mark.case("cli", 38)
def test_layers_come_from_the_deepest_ancestor_up_and_count_once(project, fdl):
    project(
        {
            "fdl.yml": "commands: {t: {run: echo base}, only: {run: echo only}}",
            "cloud.yml": "commands: {t: {run: echo cloud}, c: {run: echo cloud}}",
            "fdl.ci.yml": "inherit-from: cloud.yml\ncommands: {t: {run: echo ci}}",
            "fdl.again.yml": "inherit-from: fdl.yml\ncommands: {x: {run: echo x}}",
            "fdl.over.yml": "inherit-from: shared/over.yml",
            "shared/over.yml": "inherit-from: ../fdl.yml\ncommands: {t: {run: echo over}}",
        }
    )
    assert (fdl("ci", "t").out, fdl("ci", "c").out, fdl("ci", "only").out) == (
        "ci\n",
        "cloud\n",
        "only\n",
    )
    shown = json.loads(fdl("config", "show", "ci", "--json").out)
    assert [leaf["file"] for leaf in shown if leaf["path"] == "commands.t.run"] == ["fdl.ci.yml"]
    assert [leaf["file"] for leaf in shown if leaf["path"] == "commands.c.run"] == ["cloud.yml"]
    assert fdl("again", "t").out == "base\n"
    assert fdl("over", "t").out == "over\n", "the base counts once, below what inherits it"


def test_a_base_inherits_too(project, fdl):
    project(
        {
            "fdl.yml": "inherit-from: ../common/fdl.yml\ncommands: {mine: {run: pwd}}",
            "../common/fdl.yml": "commands: {theirs: {run: pwd}}\ninherit-from: ~",
        }
    )
    folder = fdl("mine").out
    assert fdl("theirs").out == folder, "paths and folders are the project's own"
    assert "inherit-from" not in fdl("config", "show").out


@pytest.mark.case("cli", 39)
def test_a_circle_of_inheritance_names_every_file(project, fdl):
    project(
        {
            "fdl.yml": "inherit-from: a.yml",
            "a.yml": "inherit-from: b.yml",
            "b.yml": "inherit-from: a.yml",
            "fdl.self.yml": "inherit-from: fdl.self.yml",
        }
    )
    done = fdl("t")
    assert (done.exit, done.out) == (1, "")
    assert "b.yml:1:15: `inherit-from` leads in a circle: a.yml -> b.yml -> a.yml" in done.err


@pytest.mark.case("cli", 39)
def test_inheriting_from_oneself_is_a_circle(project, fdl):
    project({"fdl.yml": BASE, "fdl.ci.yml": "inherit-from: ./fdl.ci.yml"})
    assert "in a circle: fdl.ci.yml -> fdl.ci.yml" in fdl("ci", "t").err


@pytest.mark.case("cli", 39)
def test_inheriting_from_a_number_is_refused(project, fdl):
    project({"fdl.yml": "inherit-from: 42"})
    done = fdl("t")
    assert done.exit == 1
    assert "fdl.yml:1:15: `inherit-from` must be the path of the manifest" in done.err
    assert "not 42 (a number)" in done.err


def test_a_missing_ancestor_is_told_at_the_line_that_names_it(project, fdl):
    project({"fdl.yml": "description: x\ninherit-from: gone.yml"})
    done = fdl("t")
    assert done.exit == 1
    assert "fdl.yml:2:15: `inherit-from: gone.yml`: there is no such file" in done.err


@pytest.mark.case("cli", 40)
@pytest.mark.parametrize("text", ["# nothing here\n", "", "---\n", "~\n", "{}\n"])
def test_an_overlay_that_says_nothing_changes_nothing(project, fdl, text):
    project({"fdl.yml": BASE, "fdl.ci.yml": text})
    assert fdl("config", "show", "ci").out == fdl("config", "show").out
    assert fdl("ci", "t").out == "base\n"


def test_lists_join_when_a_tag_says_so(project, fdl):
    project(
        {
            "fdl.yml": "entry: echo\ncommands: {p: {options: {l: [a, b]}}}",
            "fdl.app.yml": "commands: {p: {options: {l: !append [c]}}}",
            "fdl.pre.yml": "commands: {p: {options: {l: !prepend [c]}}}",
            "fdl.all.yml": "commands: {p: {options: {l: [c]}}}",
        }
    )
    assert fdl("app", "p").out == "--l a,b,c\n"
    assert fdl("pre", "p").out == "--l c,a,b\n"
    assert fdl("all", "p").out == "--l c\n"


def test_a_list_tag_over_something_else_is_refused(project, fdl):
    project(
        {
            "fdl.yml": "entry: echo\ncommands: {p: {options: {l: text}}}",
            "fdl.ci.yml": "commands: {p: {options: {l: !append [c]}}}",
            "fdl.bad.yml": "commands: {p: {options: {l: !append c}}}",
            "fdl.odd.yml": "commands: {p: {options: {l: !merge-by [c]}}}",
        }
    )
    done = fdl("ci", "p")
    assert done.exit == 1
    assert "fdl.ci.yml:1:29: `!append` needs a list below it" in done.err
    assert "fdl.yml:2 holds" in done.err
    assert "fdl.bad.yml:1:29: `!append` needs a list" in fdl("bad", "p").err
    assert "fdl.odd.yml:1:29" in fdl("odd", "p").err


def test_an_overlay_that_is_a_directory_or_dangles_is_told(project, fdl):
    folder = project({"fdl.yml": BASE, "fdl.ci.yml/x": ""})
    (folder / "fdl.gone.yml").symlink_to("nowhere.yml")
    assert "fdl.ci.yml: is a directory" in fdl("ci", "t").err
    assert "fdl.gone.yml: is a link to nowhere.yml" in fdl("--env", "gone", "t").err


NESTED = {
    "fdl.yml": """
        commands:
          test: {run: echo testing}
          train:
          tools:
          gpu: {run: echo the command gpu}
        """,
    "train/fdl.yml": """
        entry: echo main.py
        training: {epochs: 9}
        commands:
          quick: {options: {model: linear}}
          deep:
        """,
    "train/fdl.ci.yml": "training: {epochs: 1}\ncommands: {quick: {options: {fast: true}}}\n",
    "train/fdl.gpu.yml": "training: {epochs: 300}\n",
    "train/deep/fdl.yml": "entry: echo deep.py\ncommands: {t: {run: echo t}}\n",
    "train/deep/fdl.far.yml": "entry: echo far.py\n",
    "tools/fdl.yml": "commands: {lint: {run: echo lint}}\n",
}


@pytest.fixture(name="nested")
def _nested(project):
    """A project whose environments lie in folders of commands only."""
    return project(NESTED)


@pytest.mark.usefixtures("nested")
def test_the_first_word_is_an_environment_behind_every_flag(fdl):
    assert fdl("--jobs", "1", "ci", "train").out == "main.py --epochs 1\n"
    assert "ci" in fdl("-n", "--jobs", "2", "ci", "train", "test").out
    swept = fdl("-n", "ci", "train", "--each", "seed=1,2")
    assert swept.out.count("main.py --epochs 1 ") == 2, swept.err


@pytest.mark.usefixtures("nested")
def test_an_environment_of_a_nested_manifest_is_selected_in_every_way(fdl):
    assert fdl("train").out == "main.py --epochs 9\n"
    for typed in (("ci", "train"), ("--env", "ci", "train"), ("train", "--env=ci")):
        assert fdl(*typed).out == "main.py --epochs 1\n"
    assert fdl("train", env={"FDL_ENV": "ci"}).out == "main.py --epochs 1\n"
    assert fdl("ci", "train", "quick").out == "main.py --epochs 1 --fast --model linear\n"
    assert fdl("far", "train", "deep").out == "far.py\n"
    assert fdl("--env", "far", "train", "deep").out == "far.py\n"
    assert fdl("ci", "train", "deep").out == "deep.py\n", "an overlay on the way is enough"


@pytest.mark.usefixtures("nested")
def test_a_dry_run_config_show_and_why_treat_it_alike(fdl):
    for typed in (("-n", "ci", "train"), ("-n", "--env", "ci", "train")):
        assert "train/fdl.ci.yml:1:20" in fdl(*typed).out
    expected = fdl("--env", "ci", "config", "show", "train", "quick").out
    assert "epochs: 1 " in expected
    assert "# train/fdl.ci.yml:1 (overrides train/fdl.yml:2)" in expected
    assert fdl("config", "show", "ci", "train", "quick").out == expected
    assert fdl("ci", "config", "show", "train", "quick").out == expected
    assert fdl("config", "show", "train", "quick", env={"FDL_ENV": "ci"}).out == expected
    why = fdl("--env", "ci", "why", "training.epochs", "train").out
    assert why.startswith("training.epochs = 1\n")
    assert fdl("why", "training.epochs", "ci", "train").out == why
    assert fdl("ci", "why", "training.epochs", "train").out == why
    assert fdl("ci", "train", "--help").out.count("train/fdl.ci.yml:1:20") == 1


@pytest.mark.parametrize(
    ("typed", "variable", "what"),
    [
        (("ci", "test"), "", "`fdl test`"),
        (("--env", "ci", "test"), "", "`fdl test`"),
        (("test",), "ci", "`fdl test`"),
        (("ci", "tools", "lint"), "", "`fdl tools lint`"),
        (("ci", "test", "--help"), "", "`fdl test`"),
        (("-n", "ci", "test"), "", "`fdl test`"),
        (("config", "show", "ci", "test"), "", "`fdl test`"),
        (("config", "show", "ci"), "", "the project's own manifest"),
        (("--env", "ci", "config", "show"), "", "the project's own manifest"),
        (("why", "commands.test.run", "ci"), "", "the project's own manifest"),
        (("--env", "ci", "config", "set", "env.A", "b"), "", "the project's own manifest"),
    ],
)
@pytest.mark.usefixtures("nested")
def test_where_it_has_no_overlay_the_error_names_the_one_it_has(fdl, typed, variable, what):
    done = fdl(*typed, env={"FDL_ENV": variable})
    assert (done.exit, done.out) == (1, "")
    assert done.err == (
        f"error: environment `ci` has no overlay for {what}; it has only train/fdl.ci.yml\n"
        "hint: fdl --env ci train\n"
    )


def test_an_environment_that_no_folder_has_is_refused_with_those_that_there_are(nested, fdl):
    done = fdl("--env", "nope", "train")
    assert done.exit == 1
    assert f"there is no fdl.nope.yml in {nested}" in done.err
    listed = "ci (train/fdl.ci.yml), gpu (train/fdl.gpu.yml), far (train/deep/fdl.far.yml)"
    assert f"(environments here: {listed})" in done.err
    done = fdl("nope", "train")
    assert done.exit == 1
    assert "unknown command: nope" in done.err


@pytest.mark.usefixtures("nested")
def test_a_command_of_the_name_of_a_nested_environment_is_the_command(fdl):
    assert fdl("gpu").out == "the command gpu\n"
    assert fdl("--env", "gpu", "train").out == "main.py --epochs 300\n"
    assert fdl("config", "show", "gpu").exit == 0


@pytest.mark.usefixtures("nested")
def test_an_environment_of_a_nested_manifest_alone_is_the_help_page(fdl):
    page = fdl("ci")
    assert (page.exit, page.err) == (0, "")
    assert "\nEnvironments: ci (active), far, gpu\n" in page.out
    assert "unknown command: nope" in fdl("ci", "nope").err
    assert '"env": "ci"' in fdl("--env", "ci", "list", "--json").out


def test_folders_that_name_each_other_are_searched_once(project, fdl):
    project(
        {
            "fdl.yml": "commands: {a: , broken: , gone: }",
            "a/fdl.yml": "commands: {b: , up: {path: ..}, t: {run: echo t}}",
            "a/b/fdl.yml": "commands: {a: {path: ..}}\nentry: echo b",
            "a/b/fdl.ci.yml": "entry: echo ci\n",
            "broken/fdl.yml": "commands: [\n",
        }
    )
    assert fdl("ci", "a", "b").out == "ci\n"
    assert "a/b/fdl.ci.yml" in fdl("ci", "a", "t").err


@pytest.mark.parametrize(
    ("typed", "env"),
    [
        (("train",), None),
        (("ci", "train"), "ci"),
        (("--env", "gpu", "train"), "gpu"),
        (("root", "train", "quick"), "root"),
    ],
)
def test_a_program_learns_the_name_of_the_environment(project, fdl, typed, env):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "fdl.root.yml": "",
            "train/fdl.yml": "entry: sh show.sh\ncommands: {quick: {options: {a: 1}}}\n",
            "train/fdl.ci.yml": "",
            "train/fdl.gpu.yml": "",
            "train/show.sh": 'printf %s "$FDL_PLAN"\n',
        }
    )
    assert json.loads(fdl(*typed).out)["env"] == env
    assert json.loads(fdl("-n", "--json", *typed).out)["environment"] == env


@pytest.fixture(name="stacked")
def _stacked(project):
    """A project whose two environments set partly the same values."""
    return project(
        {
            "fdl.yml": """
                commands:
                  t: {run: 'echo $A $B $C', env: {A: base, B: base, C: base}}
                  sub:
                """,
            "fdl.ci.yml": "commands: {t: {env: {A: ci, B: ci}}}",
            "fdl.cloud.yml": "commands: {t: {env: {B: cloud}}}",
            "sub/fdl.yml": "commands: {t: {run: echo base}}",
            "sub/fdl.deep.yml": "commands: {t: {run: echo deep}}",
        }
    )


def test_several_environments_are_laid_in_the_order_of_their_names(stacked, fdl):
    assert fdl("--env", "ci,cloud", "t").out == "ci cloud base\n"
    assert fdl("--env=cloud,ci", "t").out == "ci ci base\n"
    assert fdl("t", env={"FDL_ENV": "ci,cloud"}).out == "ci cloud base\n"
    assert fdl("--env", "ci,deep", "sub", "t").out == "deep\n"
    assert sorted(one.name for one in (stacked / ".fdl").glob("manifest*")) == [
        "manifest.ci,cloud.json", "manifest.ci.json", "manifest.cloud,ci.json",
    ]  # fmt: skip
    (stacked / "fdl.cloud.yml").write_text("commands: {t: {env: {B: changed}}}")
    assert fdl("--env", "ci,cloud", "t").out == "ci changed base\n"
    plan = json.loads(fdl("--env", "ci,cloud", "--dry-run", "--json", "t").out)
    assert plan["environment"] == "ci,cloud"


@pytest.mark.usefixtures("stacked")
def test_config_show_tells_which_of_several_environments_won(fdl):
    shown = fdl("config", "show", "ci,cloud").out
    assert "B: cloud          # fdl.cloud.yml:1 (overrides fdl.ci.yml:1, fdl.yml:2)" in shown
    assert fdl("--env", "ci,cloud", "config", "show").out == shown
    assert "Environments: ci (active), cloud (active)" in fdl("--env", "ci,cloud", "--help").out


@pytest.mark.usefixtures("stacked")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("ci,clod", "error: `--env ci,clod`: there is no fdl.clod.yml in"),
        ("ci,", "error: `--env ci,` has an empty name\nhint: --env ci\n"),
        ("ci,cloud,ci", "error: `--env ci,cloud,ci` names `ci` twice\nhint: --env ci,cloud\n"),
        ("ci,deep", "environment `deep` has no overlay for `fdl t`; it has only sub/fdl.deep.yml"),
    ],
)
def test_the_wrong_one_of_several_environments_is_named(fdl, given, reason):
    done = fdl("--env", given, "t")
    assert (done.exit, done.out) == (1, "")
    assert reason in done.err


@pytest.mark.usefixtures("stacked")
def test_completion_offers_further_environments_behind_a_comma(fdl):
    assert fdl("__complete", "bash", "--", "--env", "ci,").out == "ci,cloud\nci,deep\n"
    assert fdl("__complete", "bash", "--", "--env=cloud,c").out == "--env=cloud,ci\n"


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("flag", ["--dry-run", "-n", "--jobs=2"])
def test_a_flag_behind_the_environment_is_told_where_it_belongs(fdl, flag):
    done = fdl("ci", flag, "t")
    assert (done.exit, done.out) == (1, "")
    assert done.err.splitlines()[:2] == [
        f"error: unknown option: {flag}",
        f"hint: options of fdl stand before the environment: fdl {flag} ci COMMAND",
    ]


PRESETS = """
    entry: echo run
    training: {epochs: 9}
    commands:
      quick: {training: {epochs: 3}}
      gpu1: {training: {epochs: 5}}
    """


@pytest.mark.parametrize("times", [1, 2])
def test_a_name_of_an_overlay_that_is_close_to_a_command_is_warned_about(project, fdl, times):
    project(
        {
            "fdl.yml": "commands: {train: }",
            "fdl.ci.yml": "commands:\n  trian:\n    training: {epochs: 1}\n",
            "train/fdl.yml": PRESETS,
            "train/fdl.ci.yml": "commands:\n  quik:\n    training: {epochs: 1}\n",
        }
    )
    for _ in range(times):  # the second time from the cache
        done = fdl("ci", "train", "quick")
    assert done.exit == 0
    assert done.out == "run --epochs 3\n"
    assert done.err.splitlines()[:2] == [
        "warning: fdl.ci.yml:2:3: the command `trian` is new and has no description; "
        "did you mean `train`?",
        "warning: train/fdl.ci.yml:2:3: the command `quik` is new and has no description; "
        "did you mean `quick`?",
    ]
    assert "warning" not in fdl("train", "quick").err


@pytest.mark.parametrize(
    "added",
    [
        "quik: {description: A quick one for CI, training: {epochs: 1}}",
        "quik: {run: echo deliberate}",
        "gpu2: {training: {epochs: 1}}",
        "short: {training: {epochs: 1}}",
        # Two edits of four letters make another word.
        "quit: {training: {epochs: 1}}",
        "quick: {training: {epochs: 1}}",
    ],
)
def test_commands_that_an_overlay_adds_on_purpose_are_no_slips(project, fdl, added):
    project({"fdl.yml": PRESETS, "fdl.ci.yml": f"commands:\n  {added}\n"})
    done = fdl("ci", "--help")
    assert done.exit == 0
    assert "warning" not in done.err
