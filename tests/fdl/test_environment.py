"""``env:`` and ``env_file:``: strength, origins, what is refused, and what is never printed."""

import json
import os
import subprocess
import sys

import pytest

from tests.fdl.docker_engine import Engine
from tests.fdl.terminal import PATIENCE, outside_container

SHOW = "env | grep '^V_' | sort"


def shown(session):
    """The variables that a command printed, as a dict."""
    assert session.exit == 0, session.err
    return dict(line.split("=", 1) for line in session.out.splitlines())


def plan_of(fdl, *args, **options):
    return json.loads(fdl("--dry-run", "--json", *args, **options).out)


def known(plan):
    """What a plan says about each variable of these tests: value, origin, what it has replaced."""
    return {
        one["name"]: (one["value"], one["origin"], [tuple(lost.values()) for lost in one["losers"]])
        for one in plan["variables"]
        if one["name"].startswith("V_")
    }


def test_scalars_become_text_and_a_null_takes_a_weaker_value_away(project, fdl):
    project(
        {
            "fdl.yml": f"""
            env: {{V_WORD: a b, V_WHOLE: 7, V_PART: 0.5, V_ON: true, V_EMPTY: "", V_GONE: x}}
            commands:
              t: {{run: "{SHOW}", env: {{V_GONE: ~, V_NEVER: ~, V_ON: false}}}}
            """
        }
    )
    assert shown(fdl("t")) == {
        "V_WORD": "a b",
        "V_WHOLE": "7",
        "V_PART": "0.5",
        "V_ON": "false",
        "V_EMPTY": "",
    }


STRENGTH = {
    "fdl.yml": """
        env: {V_A: root, V_B: root, V_C: root, V_D: root, V_E: root, V_F: root}
        commands:
          sub: {env: {V_C: of sub}}
        """,
    "sub/fdl.yml": """
        entry: sh show.sh
        env: {V_B: child, V_C: child, V_D: child, V_E: child, V_F: child}
        commands:
          p:
            env: {V_D: preset, V_E: preset, V_F: preset}
            env_file: p.env
            options: {x: 1}
        """,
    "sub/p.env": "V_E=file\nV_F=file\n",
    "sub/show.sh": "env | grep '^V_' | sort\n",
}


def test_the_closer_to_the_keyboard_the_stronger(project, fdl):
    project(STRENGTH)
    assert shown(fdl("sub", "-q", "p", env={"V_F": "shell"})) == {
        "V_A": "root",
        "V_B": "child",
        "V_C": "of sub",
        "V_D": "preset",
        "V_E": "file",
        "V_F": "shell",
    }
    assert shown(fdl("sub"))["V_D"] == "child"


def test_a_plan_knows_where_each_variable_comes_from_and_what_it_replaced(project, fdl):
    project(STRENGTH)
    plan = plan_of(fdl, "sub", "p", env={"V_F": "shell"})
    found = known(plan)
    assert found["V_A"] == ("root", "fdl.yml:1:12", [])
    assert found["V_C"] == (
        "of sub",
        "fdl.yml:3:20",
        [("child", "sub/fdl.yml:2:24"), ("root", "fdl.yml:1:34")],
    )
    assert found["V_E"][1] == "sub/p.env:1"
    assert [place for _, place in found["V_E"][2]] == [
        "sub/fdl.yml:5:29",
        "sub/fdl.yml:2:48",
        "fdl.yml:1:56",
    ]
    assert found["V_F"][1] == "shell"
    assert found["V_F"][2][0][1] == "sub/p.env:2"
    # What the shell has already is not set again.
    assert plan["env"].keys() >= {"V_A", "V_E"}
    assert "V_F" not in plan["env"]


def test_an_overlay_changes_variables_and_is_remembered(project, fdl):
    project(
        {
            "fdl.yml": f"""
            env: {{V_A: base, V_B: base, V_C: base}}
            commands: {{t: {{run: "{SHOW}"}}}}
            """,
            "fdl.ci.yml": "env: {V_A: ci, V_B: ~}",
        }
    )
    assert shown(fdl("--env", "ci", "t")) == {"V_A": "ci", "V_C": "base"}
    found = known(plan_of(fdl, "--env", "ci", "t"))
    assert found["V_A"] == ("ci", "fdl.ci.yml:1:12", [("base", "fdl.yml:1:12")])


def test_a_global_flag_is_stronger_than_any_file(project, fdl):
    project({"fdl.yml": "env: {FLODL_VERBOSITY: 1}\ncommands: {t: {run: echo $FLODL_VERBOSITY}}"})
    assert fdl("t").out == "1\n"
    assert fdl("t", env={"FLODL_VERBOSITY": "2"}).out == "2\n"
    assert fdl("-vvv", "t", env={"FLODL_VERBOSITY": "2"}).out == "4\n"


# Env files ----------------------------------------------------------------------------------


def reading(project, text, *more, key="env_file: .env"):
    """A project whose command ``t`` shows what an env file sets."""
    return project(
        {
            "fdl.yml": f'{key}\ncommands:\n  t: {{run: "{SHOW}"}}\n',
            ".env": text,
            **dict(more),
        }
    )


def test_an_env_file_is_read_as_dotenv_reads_it_and_nothing_is_executed(project, fdl):
    folder = reading(
        project,
        "# comment\n\nexport V_A=plain # aside\nV_B='single $(touch made)'\n"
        'V_C="two\\tparts"\nV_D=`touch made`\nV_E=\nV_F=a=b\n',
    )
    assert shown(fdl("t")) == {
        "V_A": "plain",
        "V_B": "single $(touch made)",
        "V_C": "two\tparts",
        "V_D": "`touch made`",
        "V_E": "",
        "V_F": "a=b",
    }
    assert not (folder / "made").exists()


def test_names_are_expanded_in_env_files(project, fdl):
    reading(
        project,
        "V_A=1\nV_B=${V_A}2\nV_C=${V_NONE:-other}\nV_D=${V_ROOT}/d\nV_E=${V_SHELL}e\n",
        key="env: {V_ROOT: '/r', V_RAW: '$${V_A}'}\nenv_file: .env",
    )
    found = shown(fdl("t", env={"V_SHELL": "s"}))
    assert found == {
        "V_A": "1",
        "V_B": "12",
        "V_C": "other",
        "V_D": "/r/d",
        "V_E": "se",
        "V_ROOT": "/r",
        "V_RAW": "${V_A}",
        "V_SHELL": "s",
    }
    # The shell is stronger here as well.
    assert shown(fdl("t", env={"V_A": "9"}))["V_B"] == "92"


def test_a_later_file_is_stronger_and_may_refer_to_an_earlier_one(project, fdl):
    reading(
        project,
        "V_A=1\nV_B=1\n",
        ("more/two.env", "V_B=2\nV_C=${V_A}${V_B}\n"),
        key="env_file: [.env, more/two.env]",
    )
    assert shown(fdl("t")) == {"V_A": "1", "V_B": "2", "V_C": "12"}


def test_paths_are_taken_from_the_manifest_that_names_them(project, fdl):
    project(
        {
            "fdl.yml": "env_file: .env\ncommands: {sub: }",
            ".env": "V_A=root\n",
            "sub/fdl.yml": "env_file: .env\nentry: sh show.sh\n",
            "sub/.env": "V_B=sub\n",
            "sub/show.sh": "env | grep '^V_' | sort\n",
        }
    )
    assert shown(fdl("sub")) == {"V_A": "root", "V_B": "sub"}


def test_a_missing_file_is_an_error_unless_it_need_not_be_there(project, fdl):
    reading(project, "V_A=1\n", key="env_file: [.env, .env.local]")
    done = fdl("t")
    assert (done.exit, done.out) == (1, "")
    assert done.err == (
        "error: fdl.yml:1:18: env_file `.env.local` does not exist\n"
        "hint: create .env.local, or let it be absent with `{path: .env.local, required: false}`\n"
    )
    reading(project, "V_A=1\n", key="env_file: [.env, {path: .env.local, required: false}]")
    assert shown(fdl("t")) == {"V_A": "1"}
    reading(
        project,
        "V_A=1\n",
        (".env.local", "V_A=2\n"),
        key="env_file: [.env, {path: .env.local, required: false}]",
    )
    assert shown(fdl("t")) == {"V_A": "2"}
    reading(project, "", key="env_file: {path: nope.env}")
    assert "fdl.yml:1:18: env_file `nope.env` does not exist" in fdl("t").err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("V_A=1\n\n\nhunter2secret\n", 4),
        ("V_A=1\n= hunter2secret\n", 2),
        ("V_A=1\nV_B='hunter2secret\n", 2),
        ("# one\nV_A hunter2secret\n", 2),
    ],
)
def test_a_broken_line_is_named_and_not_repeated(project, fdl, text, line):
    reading(project, text)
    done = fdl("t")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith(f"error: .env:{line}: this is not `NAME=value`\nhint: ")
    assert "hunter2secret" not in done.err


def test_a_file_that_cannot_be_read_is_an_error_with_its_place(project, fdl):
    folder = reading(project, "")
    (folder / ".env").write_bytes(b"V_A=\xff\xfe\n")
    assert "fdl.yml:1:11: env_file `.env` is not UTF-8 text" in fdl("t").err
    (folder / ".env").unlink()
    (folder / ".env").mkdir()
    done = fdl("t")
    assert done.exit == 1
    assert "fdl.yml:1:11: env_file `.env` cannot be read: Is a directory" in done.err


@pytest.mark.parametrize("name", ["PATH", "FDL_PLAN", "FDL_PROJECT_ROOT"])
def test_what_fdl_itself_sets_is_refused(project, fdl, name):
    project({"fdl.yml": f"env: {{{name}: x}}\ncommands: {{t: {{run: 'true'}}}}"})
    done = fdl("t")
    assert done.exit == 1
    assert done.err.startswith(
        f"error: fdl.yml:1:{9 + len(name)}: {name} cannot be set in a manifest"
    )
    reading(project, f"V_A=1\n{name}=x\n")
    assert fdl("t").err.startswith(f"error: .env:2: {name} cannot be set in a manifest\nhint: ")


# Secrets ------------------------------------------------------------------------------------

PLANTED = "tr0ub4dor&3 'planted'"
"""Looks different when quoted for a shell, for JSON and for YAML."""

SECRETS = {
    "fdl.yml": """
        env: {HF_TOKEN: "PLANTED", PLAIN: !secret "PLANTED", SHOWN: fine}
        env_file: .env
        commands:
          sub:
          t: {run: "./use --api-key PLANTED-in-script", append: "--password=PLANTED-appended"}
          marked: {run: !secret "./use PLANTED-marked"}
          c: {run: ./use, docker: dev}
        """,
    ".env": "INNOCENT=PLANTED-file\n",
    "use": "#!/bin/sh\n",
    "sub/fdl.yml": """
        entry: sh ../use
        docker: dev
        commands:
          p: {options: {api_key: "PLANTED", note: !secret "PLANTED-noted", lr: 3}}
        """,
    "fdl.ci.yml": "env: {HF_TOKEN: PLANTED-too}\n",
    "compose.yml": "services: {dev: {}}\n",
}


@pytest.fixture
def guarded(project):
    word = "tr0ub4dor3planted"
    folder = project({name: text.replace("PLANTED", word) for name, text in SECRETS.items()})
    (folder / "use").chmod(0o755)
    return folder, word


@pytest.mark.parametrize(
    "args",
    [
        ("t",),
        ("t", "--", "--token", "PLANTED it's", "--auth-token=PLANTED"),
        ("marked",),
        ("c", "--", "--token", "PLANTED $x", "--secret=PLANTED"),
        ("sub", "--token", "PLANTED it's"),
        ("sub", "p", "--", "PLANTED"),
        ("--env", "ci", "t"),
    ],
)
def test_a_planted_secret_is_in_no_output_of_fdl(guarded, fdl, tmp_path_factory, args):
    folder, word = guarded
    engine = Engine(tmp_path_factory.mktemp("docker") / "engine", workdir=str(folder))
    typed = [arg.replace("PLANTED", word) for arg in args]
    for flags in (["--dry-run"], ["--dry-run", "--json"], []):
        for shell in ({}, {"HF_TOKEN": f"{word}-shell"}):
            inside = fdl(*flags, *typed, env=shell)
            outside = outside_container(
                *flags, *typed, cwd=folder, env={"PATH": engine.path, **shell}
            )
            for text in (inside.out, inside.err, outside.stdout, outside.stderr):
                assert word not in text
            assert inside.out or not flags
    shown = fdl("--dry-run", *typed).out
    assert "<secret>" in shown
    assert "SHOWN=fine" in shown


def test_a_program_that_cannot_start_keeps_the_secret(guarded, fdl):
    folder, word = guarded
    (folder / "sub/fdl.yml").write_text(f"entry: !secret ./{word}\n")
    done = fdl("sub")
    assert done.exit == 1
    assert word not in done.err
    assert "cannot start `<secret>`" in done.err


def test_the_program_itself_gets_its_secrets_and_knows_which_they_are(guarded, fdl):
    folder, word = guarded
    (folder / "use").write_text('#!/bin/sh\necho "$HF_TOKEN $PLAIN $INNOCENT"; echo "$FDL_PLAN"\n')
    values, handed_down = fdl("sub", "p", "--token", "typed").out.splitlines()
    assert values == f"{word} {word} {word}-file"
    plan = json.loads(handed_down)
    assert {flag["name"]: flag["secret"] for flag in plan["flags"]} == {
        "--api-key": True,
        "--lr": False,
        "--note": True,
    }
    # The arguments are the program's own; of variables it is told no values.
    assert plan["argv"][-2:] == ["--token", "typed"]
    assert all(set(one) == {"name", "origin", "secret"} for one in plan["variables"])


def test_a_container_gets_its_variables_by_name_alone(guarded, tmp_path_factory):
    folder, word = guarded
    (folder / "use").write_text('#!/bin/sh\necho "$HF_TOKEN|$PLAIN|$INNOCENT|$SHOWN|$FROM_SHELL"\n')
    engine = Engine(tmp_path_factory.mktemp("docker") / "engine", workdir=str(folder))
    env = {"PATH": engine.path, "SHOWN": "by the shell", "FROM_SHELL": "x"}
    done = outside_container("c", cwd=folder, env=env)
    assert done.stdout == f"{word}|{word}|{word}-file|by the shell|\n"
    [call] = engine.runs()
    assert word not in json.dumps(call["argv"])
    names = [call["argv"][place + 1] for place, arg in enumerate(call["argv"]) if arg == "-e"]
    assert names == ["HF_TOKEN", "PLAIN", "SHOWN", "INNOCENT", "FLODL_VERBOSITY", "FLODL_COLOR"]


def test_no_secret_stands_in_the_list_of_processes(project):
    word = "tr0ub4dor3planted"
    folder = project({"fdl.yml": f"env: {{API_TOKEN: {word}}}\ncommands: {{t: {{run: 'ps -ef'}}}}"})
    done = subprocess.run(
        [sys.executable, "-m", "fdl", "t"],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "ps -ef" in done.stdout
    assert word not in done.stdout
