"""``fdl config show`` as typed in a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.conftest import Fdl, Project

MANIFEST = """
    # An image classifier.
    description: digits
    entry: python train.py
    training:
      lr: 1e-3
      seed: 42
    commands:
      hello: {run: "echo hi: there"}
      quick:
        training: {epochs: 1}
        options:
          sizes: [1, 2]
          name: no
    """


def test_every_leaf_carries_its_line_in_one_column(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": MANIFEST})
    session = fdl("config", "show")
    assert (session.exit, session.err) == (0, "")
    assert session.out == (
        "description: digits        # fdl.yml:2\n"
        "entry: python train.py     # fdl.yml:3\n"
        "training:\n"
        "  lr: 0.001                # fdl.yml:5\n"
        "  seed: 42                 # fdl.yml:6\n"
        "commands:\n"
        "  hello:\n"
        '    run: "echo hi: there"  # fdl.yml:8\n'
        "  quick:\n"
        "    training:\n"
        "      epochs: 1            # fdl.yml:10\n"
        "    options:\n"
        "      sizes: [1, 2]        # fdl.yml:12\n"
        '      name: "no"           # fdl.yml:13\n'
    )
    assert [path.name for path in root.iterdir()] == ["fdl.yml"]


@pytest.mark.case("cli", 12)
def test_an_exponent_is_a_float_and_no_is_text(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "training: {lr: 1e-3}\ncommands: {p: {options: {name: no}}}\n"})
    shown = yaml.safe_load(fdl("config", "show").out)
    assert shown == {"training": {"lr": 0.001}, "commands": {"p": {"options": {"name": "no"}}}}
    leaves = json.loads(fdl("config", "show", "--json").out)
    assert {leaf["path"]: leaf["value"] for leaf in leaves} == {
        "training.lr": 0.001,
        "commands.p.options.name": "no",
    }
    assert type(leaves[0]["value"]) is float


def test_json_gives_every_leaf_its_place(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": MANIFEST, "deep/down/x": ""})
    session = fdl("config", "show", "--json", cwd="deep/down")
    assert (session.exit, session.err) == (0, "")
    leaves = json.loads(session.out)
    assert len(leaves) == 8
    assert leaves[2] == {
        "path": "training.lr",
        "value": 0.001,
        "file": "fdl.yml",
        "line": 5,
        "column": 7,
        "overrides": [],
    }
    assert leaves[6]["value"] == [1, 2]


def test_without_a_manifest_it_says_what_to_type(tmp_path: Path, fdl: Fdl) -> None:
    session = fdl("config", "show")
    assert (session.exit, session.out) == (1, "")
    assert session.err.startswith(
        f"error: no fdl.yml found in {tmp_path} or any directory above it"
    )
    assert "fdl init NAME" in session.err


def test_a_broken_manifest_is_told_with_its_place(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "description: x\ncommands:\n\thello: {run: y}\n"})
    session = fdl("config", "show")
    assert (session.exit, session.out) == (1, "")
    assert "fdl.yml:3:1: not valid YAML" in session.err
    assert "indent with spaces" in session.err


def test_bare_config_and_show_help_are_help(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": MANIFEST})
    bare = fdl("config")
    assert (bare.exit, bare.err) == (0, "")
    assert "Usage: fdl config" in bare.out
    assert "show" in bare.out
    page = fdl("config", "show", "--help")
    assert (page.exit, page.err) == (0, "")
    assert "Usage: fdl config show" in page.out
    assert "--json" in page.out


def test_unreachable_commands_and_rival_manifests_are_warned_about(
    project: Project, fdl: Fdl
) -> None:
    project({"fdl.yml": "commands: {init: {run: x}, version: {run: y}, ok: }", "fdl.json": "{}"})
    session = fdl("config", "show")
    assert session.exit == 0
    assert yaml.safe_load(session.out)["commands"]["init"] == {"run": "x"}
    warnings = session.err.splitlines()
    assert len(warnings) == 3
    assert "fdl.yml is read, not fdl.json" in warnings[0]
    assert "command `init` cannot be reached" in warnings[1]
    assert "command `version` cannot be reached" in warnings[2]


def test_a_terminal_that_cannot_say_a_character_gets_an_escape(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "description: é😀\n"})
    session = fdl("config", "show", env={"PYTHONIOENCODING": "ascii"})
    assert (session.exit, session.err) == (0, "")
    assert "\\xe9" in session.out


LAYERED = {
    "fdl.yml": """
        description: digits
        training:
          lr: 0.1
          epochs: 5
          seed: 42
        commands:
          t:
            run: echo base
            append: -- --slow
          quick:
            run: "true"
        entry: echo main.py
        """,
    "fdl.cloud.yml": "training: {lr: 0.2}\n",
    "fdl.ci.yml": """
        inherit-from: fdl.cloud.yml
        # the pace of CI
        training:
          lr: 0.3
          epochs: null
        commands:
          t: {append: ~}
        """,
}


@pytest.mark.case("cli", 41)
def test_overridden_leaves_name_what_they_override_and_the_output_reads_back(
    project: Project, fdl: Fdl
) -> None:
    project(LAYERED)
    session = fdl("config", "show", "ci")
    assert (session.exit, session.err) == (0, "")
    assert session.out == (
        "description: digits  # fdl.yml:1\n"
        "training:\n"
        "  lr: 0.3            # fdl.ci.yml:4 (overrides fdl.cloud.yml:1, fdl.yml:3)\n"
        "  seed: 42           # fdl.yml:5\n"
        "commands:\n"
        "  t:\n"
        "    run: echo base   # fdl.yml:8\n"
        "  quick:\n"
        '    run: "true"      # fdl.yml:11\n'
        "entry: echo main.py  # fdl.yml:12\n"
        "# removed: training.epochs (fdl.yml:4) by fdl.ci.yml:5\n"
        "# removed: commands.t.append (fdl.yml:9) by fdl.ci.yml:7\n"
    )
    assert yaml.safe_load(session.out) == {
        "description": "digits",
        "training": {"lr": 0.3, "seed": 42},
        "commands": {"t": {"run": "echo base"}, "quick": {"run": "true"}},
        "entry": "echo main.py",
    }
    lines = [line for line in session.out.splitlines() if "  # " in line]
    assert len({line.index("  # ") for line in lines}) == 1


@pytest.mark.case("cli", 42)
def test_text_that_looks_like_a_boolean_stays_quoted_and_removed_keys_stand_at_the_end(
    project: Project, fdl: Fdl
) -> None:
    project(LAYERED)
    lines = fdl("config", "show", "ci").out.splitlines()
    assert '    run: "true"      # fdl.yml:11' in lines
    removed = [line for line in lines if "epochs" in line]
    assert removed == ["# removed: training.epochs (fdl.yml:4) by fdl.ci.yml:5"]
    assert all(line.startswith("# removed: ") for line in lines[-2:])
    unknown = fdl("config", "show", "nope")
    assert (unknown.exit, unknown.out) == (1, "")
    assert "unknown command: nope" in unknown.err


def test_the_named_environment_beats_the_active_one(project: Project, fdl: Fdl) -> None:
    project(LAYERED)
    shown = yaml.safe_load(fdl("--env", "ci", "config", "show", "cloud").out)
    assert shown["training"] == {"lr": 0.2, "epochs": 5, "seed": 42}


def test_merged_lists_say_what_they_are_merged_from(project: Project, fdl: Fdl) -> None:
    project(
        {
            "fdl.yml": "commands: {p: {options: {tags: [a], more: [x]}}}\n",
            "fdl.mid.yml": "commands: {p: {options: {tags: !append [b]}}}\n",
            "fdl.ci.yml": (
                "inherit-from: fdl.mid.yml\n"
                "commands: {p: {options: {tags: !prepend [c], more: [z]}}}\n"
            ),
        }
    )
    out = fdl("config", "show", "ci").out
    assert "tags: [c, a, b]  # fdl.ci.yml:2 (prepend to fdl.mid.yml:1; append to fdl.yml:1)" in out
    assert "more: [z]        # fdl.ci.yml:2 (overrides fdl.yml:1)" in out


def test_json_tells_what_was_overridden_and_what_was_removed(project: Project, fdl: Fdl) -> None:
    project(LAYERED)
    found = {one["path"]: one for one in json.loads(fdl("config", "show", "ci", "--json").out)}
    assert found["training.lr"] == {
        "path": "training.lr",
        "value": 0.3,
        "file": "fdl.ci.yml",
        "line": 4,
        "column": 7,
        "overrides": [
            {"file": "fdl.cloud.yml", "line": 1, "column": 16, "value": 0.2, "role": "overridden"},
            {"file": "fdl.yml", "line": 3, "column": 7, "value": 0.1, "role": "overridden"},
        ],
    }
    assert found["training.epochs"] == {
        "path": "training.epochs",
        "value": None,
        "removed": True,
        "file": "fdl.ci.yml",
        "line": 5,
        "column": 11,
        "overrides": [
            {"file": "fdl.yml", "line": 4, "column": 11, "value": 5, "role": "overridden"}
        ],
    }


def test_secrets_are_blanked_out_and_nothing_else_changes(project: Project, fdl: Fdl) -> None:
    project(
        {
            "fdl.yml": """
            env: {HF_TOKEN: hf_abcdefghij, MODE: !secret mode-of-old, PLAIN: yes}
            commands:
              t: {run: "curl --api-key abc123xyz -s"}
              u: {run: echo hf_abcdefghij}
            """,
            "fdl.ci.yml": "env: {MODE: mode-of-ci}\n",
        }
    )
    session = fdl("config", "show", "ci")
    assert yaml.safe_load(session.out) == {
        "env": {"HF_TOKEN": "<secret>", "MODE": "<secret>", "PLAIN": "yes"},
        "commands": {"t": {"run": "curl --api-key <secret> -s"}, "u": {"run": "echo <secret>"}},
    }
    both = session.out + fdl("config", "show", "ci", "--json").out
    for secret in ("hf_abcdefghij", "mode-of-old", "mode-of-ci", "abc123xyz"):
        assert secret not in both


CHILD = {
    "fdl.yml": "env: {HF_HOME: /data}\ncommands: {train: }\n",
    "train/fdl.yml": """
        entry: python main.py
        training: {lr: 0.1, epochs: 5}
        schema:
          options:
            lr: {type: float, default: 0.01}
            workers: {type: int, default: 4, env: WORKERS}
        commands:
          quick:
            training: {epochs: 1}
            options: {model: linear}
        """,
}


def test_a_command_shows_its_sections_its_argv_and_where_they_come_from(
    project: Project, fdl: Fdl
) -> None:
    root = project(CHILD)
    session = fdl("config", "show", "train", "quick", "--lr", "0.5", env={"WORKERS": "8"})
    assert (session.exit, session.err) == (0, "")
    shown = yaml.safe_load(session.out)
    argv = "python main.py --epochs 1 --lr 0.1 --model linear --lr 0.5"
    assert shown == {
        "entry": "python main.py",
        "env": {
            "HF_HOME": "/data",
            "FDL_PROJECT_ROOT": str(root),
        },
        "training": {"epochs": 1, "lr": 0.5},
        "options": {"model": "linear", "workers": 8},
        "argv": argv.split(),
    }
    comments = {
        body.split(":")[0].strip(): comment
        for body, _, comment in (row.partition("  # ") for row in session.out.splitlines())
        if comment
    }
    assert comments == {
        "entry": "train/fdl.yml:1",
        "HF_HOME": "fdl.yml:1",
        "FDL_PROJECT_ROOT": "fdl",
        "epochs": "train/fdl.yml:9, preset quick (overrides train/fdl.yml:2)",
        "lr": "command line (overrides train/fdl.yml:2, schema default)",
        "model": "train/fdl.yml:10, preset quick",
        "workers": "environment variable WORKERS (overrides schema default)",
        "argv": "what is started",
    }


def test_the_value_of_a_bare_option_is_not_that_of_an_absent_one(
    project: Project, fdl: Fdl
) -> None:
    project(
        {
            "fdl.yml": "commands: {train: }",
            "train/fdl.yml": """
                entry: python main.py
                schema:
                  options:
                    engine: {type: string, default: auto}
                    resume: {type: string, default: last, bare: true}
                commands:
                  again: {options: {resume: mine}}
                """,
        }
    )
    assert yaml.safe_load(fdl("config", "show", "train").out)["training"] == {"engine": "auto"}
    assert "nothing sets `options.resume`" in fdl("why", "options.resume", "train").err
    document = json.loads(fdl("config", "show", "train", "again", "--json").out)
    (resume,) = [one for one in document["fields"] if one["path"] == "options.resume"]
    assert (resume["value"], resume["overrides"]) == ("mine", [])


def test_a_command_as_json(project: Project, fdl: Fdl) -> None:
    project(CHILD)
    document = json.loads(fdl("config", "show", "train", "quick", "--json").out)
    assert document["schema_version"] == 1
    assert (document["command"], document["preset"]) == (["train", "quick"], "quick")
    assert document["argv"][:2] == ["python", "main.py"]
    fields = {one["path"]: one for one in document["fields"]}
    assert fields["training.epochs"]["source"] == "preset quick"
    assert fields["training.epochs"]["overrides"][0]["value"] == 5
    assert fields["options.workers"]["source"] == "schema default"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "unknown command: nope; and there is no fdl.nope.yml in "),
        (["trian", "quick"], "did you mean `fdl train`?"),
        (["tools"], "`fdl tools` runs nothing"),
        (["tools", "nope"], "unknown command: tools nope"),
        (["--jsno"], "unknown option `--jsno`, did you mean `--json`?"),
    ],
)
def test_a_command_that_runs_nothing_is_refused(
    project: Project, fdl: Fdl, words: list[str], message: str
) -> None:
    project(
        {
            **CHILD,
            "fdl.yml": "commands: {train: , tools: }\n",
            "tools/fdl.yml": "commands: {t: {run: 'true'}}\n",
        }
    )
    session = fdl("config", "show", *words)
    assert (session.exit, session.out) == (2 if words == ["--jsno"] else 1, "")
    assert message in session.err


def test_an_environment_may_stand_before_the_command(project: Project, fdl: Fdl) -> None:
    project({**CHILD, "fdl.ci.yml": "env: {HF_HOME: /ci}\n"})
    shown = yaml.safe_load(fdl("config", "show", "ci", "train", "quick").out)
    assert shown["env"]["HF_HOME"] == "/ci"
    assert shown == yaml.safe_load(fdl("--env", "ci", "config", "show", "train", "quick").out)
    assert shown == yaml.safe_load(fdl("ci", "config", "show", "train", "quick").out)
    assert fdl("why", "env.HF_HOME", "ci", "train").out.startswith("env.HF_HOME = /ci\n")
    assert fdl("why", "env.HF_HOME", "ci").out.startswith("env.HF_HOME = /ci\n")


def test_a_word_that_is_a_command_and_an_environment_is_the_command(
    project: Project, fdl: Fdl
) -> None:
    project({**CHILD, "fdl.train.yml": "env: {HF_HOME: /other}\n"})
    session = fdl("config", "show", "train")
    assert session.exit == 0
    assert yaml.safe_load(session.out)["entry"] == "python main.py"
    assert "for the environment, type --env train" in session.err
    other = yaml.safe_load(fdl("--env", "train", "config", "show").out)
    assert other["env"] == {"HF_HOME": "/other"}


def test_what_stands_behind_two_dashes_is_the_commands(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "commands: {t: {run: tool}}\n"})
    document = json.loads(fdl("config", "show", "t", "--json", "--", "--json", "-v").out)
    assert document["argv"][-1] == "tool --json -v"


def test_an_option_where_a_command_is_named_is_told_where_options_stand(project, fdl):
    project({"fdl.yml": "commands: {t: {run: echo}}\n"})
    done = fdl("config", "show", "--", "-x")
    assert (done.exit, done.out) == (2, "")
    assert done.err == "error: unknown option: -x\nhint: options of a command stand behind it\n"
