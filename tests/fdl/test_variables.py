"""``${VAR}`` in the values of a manifest."""

import json

import pytest

TRAIN = {
    "fdl.yml": "commands: {train: }",
    "train/fdl.yml": """
        entry: echo
        env: {BASE: /data}
        env_file: {path: '${WHERE:-none}.env', required: false}
        training: {lr: "${LR:-0.1}"}
        output: {dir: "${BASE}/runs"}
        commands:
          quick:
            options:
              {name: "run-${NAME:-x}", amp: "${AMP:-false}", cost: "$$5", tags: ["${A:-a}", b]}
        """,
}


def test_settings_take_the_values_of_variables(project, fdl):
    project(TRAIN)
    assert (
        fdl("train", "quick").out
        == "--lr 0.1 --output /data/runs --cost $5 --name run-x --tags a,b\n"
    )
    done = fdl("train", "quick", env={"LR": "1e-3", "BASE": "/x", "AMP": "true", "NAME": "7"})
    assert done.out == "--lr 0.001 --output /x/runs --amp --cost $5 --name run-7 --tags a,b\n"


def test_numbers_in_options_keep_their_spelling(project, fdl):
    project({"fdl.yml": 'entry: echo\ncommands: {t: {options: {id: "${ID}"}}}'})
    assert fdl("t", env={"ID": "007"}).out == "--id 007\n"
    assert fdl("t", env={"ID": "1e3"}).out == "--id 1e3\n"


def test_env_files_give_values_and_may_have_references_in_their_paths(project, fdl):
    project({**TRAIN, "train/lab.env": "LR=0.5\nNAME=lab\n"})
    done = fdl("train", "quick", env={"WHERE": "lab"})
    assert "--lr 0.5" in done.out
    assert "--name run-lab" in done.out


def test_variables_refer_to_each_other_and_the_shell_is_stronger(project, fdl):
    project(
        {
            "fdl.yml": """
                env: {A: "${B}/${C:-c}", B: "b$${x}", D: "${E}", E: 1}
                commands: {t: {run: echo $A}}
                """
        }
    )
    assert fdl("t").out == "b${x}/c\n"
    assert fdl("t", env={"B": "shell"}).out == "shell/c\n"
    assert fdl("t", env={"A": "${untouched}"}).out == "${untouched}\n"


def test_folders_take_the_values_of_variables(project, fdl):
    folder = project(
        {
            "fdl.yml": """
                env: {SUB: deep}
                commands: {there: {path: "work/${SUB}"}, here: {run: pwd, cwd: "work/${SUB}"}}
                """,
            "work/deep/fdl.yml": "description: Deep down\ncommands: {t: {run: pwd}}",
            "work/other/fdl.yml": "commands: {t: {run: pwd}}",
        }
    )
    assert fdl("there", "t").out == f"{folder}/work/deep\n"
    assert fdl("there", "t", env={"SUB": "other"}).out == f"{folder}/work/other\n"
    assert fdl("here").out == f"{folder}/work/deep\n"


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            "entry: echo\ntraining:\n  epochs: ${N}\ncommands: {t: {training: {lr: 1}}}",
            "error: fdl.yml:3:11: the variable N is not set\n"
            "hint: set N, or give it a default: ${N:-default}\n",
        ),
        (
            "entry: echo\ntraining: {epochs: '${N:-many}'}\ncommands: {t: {training: {lr: 1}}}",
            "error: fdl.yml:2:20: `training.epochs` must be a whole number, not the text "
            '"many" (from ${N})\n',
        ),
        (
            "commands: {t: {run: echo, env: {A: '${a.b}'}}}",
            "error: fdl.yml:1:36: `${` does not begin a `${VAR}` or a `${VAR:-default}`\n"
            "hint: write `$${` for the text itself\n",
        ),
        (
            "commands: {t: {run: echo, env: {A: '${B}', B: '${A}'}}}",
            "error: fdl.yml:1:36: variables refer to each other: A -> B -> A\n",
        ),
        (
            "commands: {t: {run: echo, cwd: '${GONE}'}}",
            "error: fdl.yml:1:32: the variable GONE is not set\n",
        ),
    ],
)  # fmt: skip
def test_what_has_no_value_is_an_error_with_its_place(project, fdl, manifest, message):
    project({"fdl.yml": manifest})
    done = fdl("t")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith(message)


def test_a_command_without_a_value_does_not_block_help_and_completion(project, fdl):
    project({"fdl.yml": "commands: {a: {path: '${GONE}'}, b: {run: echo b}}"})
    assert "(broken: `fdl a` says why)" in fdl("--help").out
    assert "b\n" in fdl("__complete", "bash", "--", "").out


def test_config_show_prints_the_text_and_of_a_command_the_value(project, fdl):
    project(TRAIN)
    assert 'lr: "${LR:-0.1}"' in fdl("config", "show", cwd="train").out
    shown = fdl("config", "show", "train", env={"LR": "0.7"}).out
    assert "lr: 0.7  " in shown
    assert "train/fdl.yml:4" in shown
    assert "0.7" in fdl("why", "training.lr", "train", env={"LR": "0.7"}).out


def test_the_variable_behind_a_value_is_named(project, fdl):
    project({**TRAIN, "train/fdl.ci.yml": "training: {lr: 0.5}"})
    for set_to, value in (({"LR": "3"}, "3"), ({}, "0.1")):
        why = fdl("why", "lr", "train", env=set_to).out
        assert f"  wins  {value}  train/fdl.yml:4:16  manifest, ${{LR}}\n" in why
        assert "train/fdl.yml:4:16  ${LR}\n" in fdl("-n", "train", env=set_to).out
    asked = json.loads(fdl("why", "lr", "train", "--json").out)["fields"][0]["stack"]
    assert [one.get("reference") for one in asked] == ["${LR}"]
    name = fdl("why", "options.name", "train", "quick").out
    assert "preset quick, ${NAME}" in name
    assert "${" not in fdl("--env", "ci", "why", "lr", "train").out.splitlines()[1]
    refused = fdl("train", env={"LR": "fast"}).err
    assert 'must be a number, not the text "fast" (from ${LR})' in refused


def test_a_value_made_from_a_secret_is_a_secret(project, fdl):
    project(
        {
            "fdl.yml": """
                entry: echo
                env: {URL: "http://u:${MY_PASSWORD}@h"}
                commands: {t: {options: {remote: "http://${MY_PASSWORD}@h"}}}
                """
        }
    )
    shown = fdl("-n", "--json", "t", env={"MY_PASSWORD": "hunter22"}).out
    assert "hunter22" not in shown
    assert json.loads(shown)["flags"][0]["secret"] is True
    assert fdl("t", env={"MY_PASSWORD": "hunter22"}).out == "--remote http://hunter22@h\n"


def test_runs_are_found_in_a_folder_named_by_a_variable(project, fdl):
    project({"fdl.yml": 'entry: echo\noutput: {dir: "${WORK:-w}/runs"}'})
    assert "there are no runs in w/runs" in fdl("runs", "show", "last").err


def test_the_value_of_a_variable_is_checked_against_the_schema(project, fdl):
    project(
        {
            "fdl.yml": """
                entry: echo
                schema: {options: {model: {type: string, choices: [big, small]}}}
                commands: {t: {options: {model: "${MODEL:-small}"}}}
                """
        }
    )
    assert fdl("t").out == "--model small\n"
    done = fdl("t", env={"MODEL": "bigg"})
    assert (done.exit, done.out) == (1, "")
    assert "invalid value `bigg` for `--model` -- allowed: big, small" in done.err
