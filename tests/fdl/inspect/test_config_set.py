"""``fdl config set`` as typed in a terminal."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Fdl, Project

BASE = """\
entry: python train.py   # A classifier.
description: digits   # shown by fdl --help
training:
  lr: 0.1      # found by hand
  epochs: 5

  seed: 42
env:
  HF_TOKEN: !secret abcdef123   # of the team
  PLAIN: 'quoted'
commands:
  # the tests
  t:
    run: |
      echo a
      echo b
    append: -- -x
  p:
    options:
      tags:
        - a
        - b
"""

CI = """\
training: {lr: 0.5}   # slower
commands:
  p: {options: {tags: !append [c]}}
"""


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        ("training.lr", "1e-3", "lr: 0.1      # found", "lr: 1e-3      # found"),
        ("description", "null", "description: digits ", "description: null "),
        ("env.PLAIN", "it is", "'quoted'", "'it is'"),
        ("env.PLAIN", "no", "'quoted'", "'no'"),
        ("env.HF_TOKEN", "new-secret", "!secret abcdef123 ", "!secret new-secret "),
        ("commands.t.run", "make", "|\n      echo a\n      echo b\n", "make\n"),
        ("commands.t.run", '"a: b"', "|\n      echo a\n      echo b\n", '"a: b"\n'),
        ("training.batch_size", "8", "  seed: 42\n", "  seed: 42\n  batch_size: 8\n"),
        ("commands.p.options.tags", "[x]", "- a\n        - b\n", "- x\n"),
        ("commands.p.options.tags", "all", "\n        - a\n        - b\n", " all\n"),
        ("commands.new.run", "make", "- b\n", "- b\n  new:\n    run: make\n"),
        ("output.dir", "runs", "- b\n", "- b\noutput:\n  dir: runs\n"),
    ],
)
def test_only_the_value_changes_in_the_text(
    project: Project, fdl: Fdl, path: str, value: str, old: str, new: str
) -> None:
    root = project({"fdl.yml": BASE})
    session = fdl("config", "set", path, value)
    assert (session.exit, session.err) == (0, "")
    assert BASE.count(old) == 1
    assert (root / "fdl.yml").read_text() == BASE.replace(old, new)


def test_the_answer_is_what_why_says(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": BASE})
    out = fdl("config", "set", "training.lr", "0.2").out
    stack = "training.lr = 0.2\n  wins  0.2  fdl.yml:4:7  manifest\n"
    assert out == f"changed fdl.yml:4\n{stack}"
    assert fdl("why", "training.lr").out == stack
    out = fdl("config", "set", "commands.t.run", "make").out
    assert out.startswith("changed fdl.yml:14 for `fdl t`\ncommands.t.run = make\n")


def test_the_layer_that_wins_is_the_one_that_changes(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": BASE, "fdl.ci.yml": CI})
    assert fdl("--env", "ci", "config", "set", "training.lr", "0.7").exit == 0
    assert (root / "fdl.yml").read_text() == BASE
    assert (root / "fdl.ci.yml").read_text() == CI.replace("0.5", "0.7")


def test_a_new_key_goes_to_the_strongest_layer_with_its_mapping(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": BASE, "fdl.ci.yml": CI})
    assert fdl("--env", "ci", "config", "set", "training.batch_size", "8").exit == 0
    assert (root / "fdl.ci.yml").read_text() == CI.replace("0.5}", "0.5, batch_size: 8}")
    assert fdl("--env", "ci", "config", "set", "env.MODE", "fast").exit == 0
    assert (root / "fdl.yml").read_text() == BASE.replace("'quoted'\n", "'quoted'\n  MODE: fast\n")


def test_null_in_an_overlay_removes_and_a_value_brings_back(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": BASE, "fdl.ci.yml": CI})
    session = fdl("config", "set", "training.epochs", "null", "--where", "ci")
    assert session.exit == 0
    assert session.out.startswith("changed fdl.ci.yml:1\ntraining.epochs is removed\n")
    assert "{lr: 0.5, epochs: null}" in (root / "fdl.ci.yml").read_text()
    assert fdl("--env", "ci", "config", "set", "training.epochs", "9").exit == 0
    assert "{lr: 0.5, epochs: 9}" in (root / "fdl.ci.yml").read_text()
    assert (root / "fdl.yml").read_text() == BASE


def test_a_change_without_effect_is_refused_with_the_layer_that_wins(
    project: Project, fdl: Fdl
) -> None:
    root = project({"fdl.yml": BASE, "fdl.ci.yml": CI})
    for where in ("base", "fdl.yml"):
        session = fdl("--env", "ci", "config", "set", "training.lr", "0.9", "--where", where)
        assert (session.exit, session.out) == (1, "")
        assert "fdl.ci.yml:1:16 wins for `training.lr`" in session.err
        assert "--where fdl.ci.yml" in session.err
    assert (root / "fdl.yml").read_text() == BASE
    unknown = fdl("config", "set", "training.lr", "0.9", "--where", "nope")
    assert unknown.exit == 2
    assert "one of base, ci, fdl.yml" in unknown.err


def test_the_layer_named_by_a_refusal_is_one_that_where_takes(project: Project, fdl: Fdl) -> None:
    root = project(
        {
            "p/fdl.yml": "entry: e\ntraining: {lr: 1}",
            "p/fdl.ci.yml": "inherit-from: ../shared/ci.yml",
            "shared/ci.yml": "training: {lr: 2}",
        }
    )
    change = ("--env", "ci", "config", "set", "training.lr", "3", "--where")
    refused = fdl(*change, "base", cwd="p")
    assert refused.exit == 1
    named = refused.err.rpartition("--where ")[2].strip()
    assert fdl(*change, named, cwd="p").exit == 0
    assert (root / "shared/ci.yml").read_text() == "training: {lr: 3}"


def test_a_merged_list_is_changed_part_by_part(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": BASE, "fdl.ci.yml": CI})
    change = ("--env", "ci", "config", "set", "commands.p.options.tags", "[z]")
    session = fdl(*change)
    assert session.exit == 1
    assert "is put together from fdl.ci.yml, fdl.yml" in session.err
    session = fdl(*change, "--where", "ci")
    head, answer = session.out.splitlines()[:2]
    assert head == "changed fdl.ci.yml:3 for `fdl p`"
    assert answer == "commands.p.options.tags = [a, b, z]"
    assert (root / "fdl.ci.yml").read_text() == CI.replace("!append [c]", "!append [z]")
    assert "\ncommands.p.options.tags = [z, z]\n" in fdl(*change, "--where", "base").out


@pytest.mark.parametrize(
    ("exit_code", "path", "value", "message"),
    [
        (
            1,
            "training.lr",
            "abc",
            'fdl.yml:4:7: `training.lr` must be a number, not the text "abc"',
        ),
        (1, "traning.lr", "1", "unknown key `traning`; did you mean `training`?"),
        (2, "training.lr", "[1", "the new value: VALUE:2:1: not valid YAML"),
        (2, "training.lr", "", "the new value is empty"),
        (2, "training.lr", "# 3", "the new value is empty, because `#` begins a comment"),
        (1, "training.lr.x", "1", "must be a number, not a mapping"),
        (2, "inherit-from", "x.yml", "decides which layers there are"),
        (2, "commands.p.options.tags[0]", "x", "is one item of a list"),
        (1, "training", "{lr: 1}", "without touching what is around it"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    project: Project, fdl: Fdl, exit_code: int, path: str, value: str, message: str
) -> None:
    root = project({"fdl.yml": BASE})
    session = fdl("config", "set", path, value)
    assert (session.exit, session.out) == (exit_code, "")
    assert message in session.err
    assert (root / "fdl.yml").read_text() == BASE
    assert [one.name for one in root.iterdir()] == ["fdl.yml"]


def test_a_dry_run_prints_the_difference_without_secrets(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": BASE})
    session = fdl("config", "set", "env.HF_TOKEN", "brand-new-one", "-n")
    assert session.exit == 0
    assert "-  HF_TOKEN: !secret <secret>   # of the team\n" in session.out
    assert "+  HF_TOKEN: !secret <new secret>   # of the team\n" in session.out
    assert "abcdef123" not in session.out
    assert "brand-new-one" not in session.out
    before = fdl("--dry-run", "config", "set", "training.lr", "0.2").out
    assert before.startswith("--- fdl.yml\n+++ fdl.yml (new)\n")
    assert "-  lr: 0.1      # found by hand\n+  lr: 0.2      # found by hand\n" in before
    assert (root / "fdl.yml").read_text() == BASE


def test_each_secret_of_a_file_is_hidden_in_its_place(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": "env:\n  A: !secret first\n  B: !secret second-and-longer # b\n  C: x\n"})
    session = fdl("config", "set", "env.C", "y", "-n")
    assert session.exit == 0
    assert session.out.splitlines()[3:] == [
        " env:",
        "   A: !secret <secret>",
        "   B: !secret <secret> # b",
        "-  C: x",
        "+  C: y",
    ]


def test_a_secret_is_not_repeated_by_an_error(project: Project, fdl: Fdl) -> None:
    project({"fdl.yml": BASE})
    refused = ((2, "*sesame-open"), (2, "[sesame-open"), (1, "{sesame-open: 1}"))
    for exit_code, value in refused:
        session = fdl("config", "set", "env.HF_TOKEN", value)
        assert session.exit == exit_code
        assert "sesame-open" not in session.err + session.out


def test_shared_places_are_refused_and_merge_keys_overridden(project: Project, fdl: Fdl) -> None:
    text = """\
        training: &t
          lr: 0.1
        commands:
          a: {training: *t}
          b: {training: {<<: *t, seed: 1}}
        entry: python x.py
        """
    root = project({"fdl.yml": text})
    before = (root / "fdl.yml").read_text()
    for path in ("training.lr", "commands.a.training.lr", "training"):
        session = fdl("config", "set", path, "{}" if path == "training" else "0.2")
        assert session.exit == 1
        assert "is shared through an anchor" in session.err
        assert (root / "fdl.yml").read_text() == before
    assert fdl("config", "set", "commands.b.training.lr", "0.2").exit == 0
    assert (root / "fdl.yml").read_text() == before.replace("seed: 1}", "seed: 1, lr: 0.2}")


def test_json_keeps_its_layout(project: Project, fdl: Fdl) -> None:
    text = '{\n\t"entry": "e",\n\t"training": {"lr": 0.1},\n'
    text += '\t"commands": {\n\t\t"t": {\n\t\t\t"run": "x"\n\t\t}\n\t}\n}\n'
    root = project({"fdl.json": "{}"})
    (root / "fdl.json").write_text(text)
    assert fdl("config", "set", "training.lr", "1e-3").exit == 0
    assert fdl("config", "set", "commands.t.append", "--", "-- é").exit == 0
    assert fdl("config", "set", "description", "yes").exit == 0
    expected = text.replace("0.1", "0.001").replace(
        '"run": "x"', '"run": "x",\n\t\t\t"append": "-- é"'
    )
    expected = expected.replace("\t}\n}\n", '\t},\n\t"description": "yes"\n}\n')
    assert (root / "fdl.json").read_text() == expected
    assert json.loads(expected)["description"] == "yes"


def test_line_ends_and_the_byte_order_mark_stay(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": ""})
    (root / "fdl.yml").write_bytes(b"\xef\xbb\xbftraining:\r\n  lr: 1\r\nentry: python x.py")
    assert fdl("config", "set", "training.seed", "2").exit == 0
    assert fdl("config", "set", "description", "é").exit == 0
    assert (root / "fdl.yml").read_bytes() == (
        "\ufefftraining:\r\n  lr: 1\r\n  seed: 2\r\nentry: python x.py\r\ndescription: é"
    ).encode()


@pytest.mark.parametrize("text", ["", "# only a comment\n", "# no line end", "---\n"])
def test_an_empty_manifest_gets_its_first_key(project: Project, fdl: Fdl, text: str) -> None:
    root = project({"fdl.yml": ""})
    (root / "fdl.yml").write_text(text)
    assert fdl("config", "set", "commands.t.run", "make").exit == 0
    assert (root / "fdl.yml").read_text().startswith(text)
    assert fdl("why", "commands.t.run").out.startswith("commands.t.run = make\n")


def test_links_and_permissions_stay(project: Project, fdl: Fdl) -> None:
    root = project({"shared/real.yml": BASE})
    (root / "shared/real.yml").chmod(0o640)
    (root / "fdl.yml").symlink_to("shared/real.yml")
    assert fdl("config", "set", "training.lr", "0.2").exit == 0
    assert (root / "fdl.yml").is_symlink()
    assert (root / "shared/real.yml").read_text() == BASE.replace("0.1 ", "0.2 ")
    assert (root / "shared/real.yml").stat().st_mode & 0o777 == 0o640
    assert [one.name for one in (root / "shared").iterdir()] == ["real.yml"]


def test_an_example_is_copied_only_when_something_is_written(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml.example": BASE})
    assert fdl("config", "set", "training.lr", "0.2", "-n").exit == 0
    assert fdl("config", "set", "training.lr", "abc").exit == 1
    assert [one.name for one in root.iterdir()] == ["fdl.yml.example"]
    session = fdl("config", "set", "training.lr", "0.2")
    assert session.exit == 0
    assert "Created fdl.yml from fdl.yml.example." in session.err
    assert (root / "fdl.yml").read_text() == BASE.replace("0.1 ", "0.2 ")
    assert (root / "fdl.yml.example").read_text() == BASE


def test_setting_what_is_there_already_leaves_the_file_alone(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": BASE})
    before = (root / "fdl.yml").stat().st_mtime_ns
    session = fdl("config", "set", "training.lr", "0.1")
    assert session.out.startswith("fdl.yml:4 has this value already\n")
    assert (root / "fdl.yml").stat().st_mtime_ns == before
    assert fdl("config", "set", "training.lr", "0.1", "-n").out == ""


def test_in_a_folder_of_its_own_the_child_is_the_manifest(project: Project, fdl: Fdl) -> None:
    root = project({"fdl.yml": "commands: {sub: }\n", "sub/fdl.yml": "entry: python a.py\n"})
    assert fdl("config", "set", "training.lr", "0.2", cwd="sub").exit == 0
    assert (root / "sub/fdl.yml").read_text() == "entry: python a.py\ntraining:\n  lr: 0.2\n"


def test_a_mapping_that_a_layer_removes_is_left_alone(project: Project, fdl: Fdl) -> None:
    files = {"fdl.yml": "entry: e\ntraining: {lr: 0.1}\n", "fdl.ci.yml": "training: null\n"}
    root = project(files)
    change = ("--env", "ci", "config", "set", "training.seed", "1")
    hidden = fdl(*change, "--where", "base")
    assert hidden.exit == 1
    assert "would have no effect" in hidden.err
    revived = fdl(*change)
    assert revived.exit == 1
    assert "would also set `training.lr`" in revived.err
    assert {name: (root / name).read_text() for name in files} == files


TREE = {
    "fdl.yml": """\
commands:
  train:
  t: {run: make}
  both: {entry: echo parent.py}
""",
    "train/fdl.yml": """\
entry: echo main.py
training:
  lr: 0.1   # found by hand
schema:
  strict: true
  options:
    lr: {type: float, default: 0.001, env: LR}
    epochs: {type: int}
    model: {type: string, choices: [linear, conv]}
commands:
  quick:
    training: {epochs: 1}
    options: {model: linear}
  slow: {training: {lr: 0.01}}
  deep:
""",
    "train/fdl.ci.yml": "commands: {slow: {training: {lr: 0.02}}}   # CI\n",
    "train/deep/fdl.yml": "entry: echo deep.py\n",
    "both/fdl.yml": "entry: echo own.py\n",
}


@pytest.mark.parametrize(
    ("line", "path", "value", "change", "place"),
    [
        ("train", "training.lr", "0.2", ("lr: 0.1  ", "lr: 0.2  "), "train/fdl.yml:3"),
        ("train slow", "training.lr", "0.2", ("lr: 0.01}", "lr: 0.2}"), "train/fdl.yml:14"),
        (
            "train quick",
            "training.lr",
            "7",
            ("epochs: 1}", "epochs: 1, lr: 7}"),
            "train/fdl.yml:12",
        ),
        ("train quick", "options.model", "conv", ("linear}", "conv}"), "train/fdl.yml:13"),
        ("train quick", "entry", "echo b.py", ("echo main.py", "echo b.py"), "train/fdl.yml:1"),
        ("train quick", "env.A", "b", ("linear}\n", "linear}\n    env:\n      A: b\n"), ""),
        ("t", "run", "ninja", ("make", "ninja"), "fdl.yml:3"),
        ("train deep", "training.lr", "3", ("deep.py\n", "deep.py\ntraining:\n  lr: 3\n"), ""),
        ("ci train slow", "training.lr", "3", ("0.02}", "3}"), "train/fdl.ci.yml:1"),
    ],
)
def test_a_value_is_changed_for_one_command(
    project: Project,
    fdl: Fdl,
    line: str,
    path: str,
    value: str,
    change: tuple[str, str],
    place: str,
) -> None:
    root = project(TREE)
    session = fdl("config", "set", "--for", line, path, value)
    assert (session.exit, session.err) == (0, "")
    changed = [name for name, text in TREE.items() if (root / name).read_text() != text]
    (file,) = changed
    assert TREE[file].count(change[0]) == 1
    assert (root / file).read_text() == TREE[file].replace(*change)
    head, _, stack = session.out.partition("\n")
    command = f"fdl {line.removeprefix('ci ')}"
    assert head.startswith(f"changed {place}")
    assert head.endswith(f" for `{command}`")
    assert fdl("why", path, *line.split()).out == stack


def test_a_preset_is_changed_and_what_it_inherits_stays(project: Project, fdl: Fdl) -> None:
    root = project(TREE)
    out = fdl("config", "set", "--for", "train quick", "training.lr", "0.01").out
    assert out == (
        "changed train/fdl.yml:12 for `fdl train quick`\n"
        "training.lr = 0.01\n"
        "  wins        0.01   train/fdl.yml:12:31  preset quick\n"
        "  overridden  0.1    train/fdl.yml:3:7    manifest\n"
        "  overridden  0.001                       schema default\n"
    )
    assert fdl("train").out == "main.py --lr 0.1\n"
    assert fdl("config", "set", "--for", "train quick", "training.lr", "null").exit == 0
    assert "epochs: 1, lr: null}" in (root / "train/fdl.yml").read_text()
    assert fdl("train", "quick").out == "main.py --epochs 1 --model linear\n"


def test_an_option_of_the_program_is_set_for_all_its_presets(project: Project, fdl: Fdl) -> None:
    root = project(TREE)
    out = fdl("config", "set", "--for", "train", "options.model", "conv").out
    assert out.endswith("options.model = conv\n  wins  conv  train/fdl.yml:17:10  manifest\n")
    assert "options:\n  model: conv\n" in (root / "train/fdl.yml").read_text()
    assert fdl("train").out == "main.py --lr 0.1 --model conv\n"
    assert fdl("train", "quick").out == "main.py --epochs 1 --lr 0.1 --model linear\n"


@pytest.mark.parametrize(
    ("exit_code", "words", "message"),
    [
        (1, ("--for", "nope", "training.lr", "1"), "unknown command: nope"),
        (2, ("--for", "train nope'", "training.lr", "1"), "`--for` does not split into words"),
        (1, ("--for", "", "training.lr", "1"), "`fdl` runs nothing"),
        (1, ("--for", "train quick", "options.model", "vgg"), "vgg"),
        (
            1,
            ("--for", "train quick --lr 2", "training.lr", "1"),
            "command line wins for `training.lr`",
        ),
        (1, ("--for", "both", "entry", "echo c.py"), "fdl.yml:4:17 wins for `entry`"),
        (
            2,
            ("--for", "train quick", "--where", "fdl.yml", "training.lr", "1"),
            "`--for` changes train/fdl.yml, and `--where` names fdl.yml",
        ),
        (
            2,
            ("--for", "train", "--where", "train/deep/fdl.yml", "training.lr", "1"),
            "`--for` changes train/fdl.yml, and `--where` names train/deep/fdl.yml",
        ),
        (2, ("--where", "../other/fdl.yml", "training.lr", "1"), "is not a file of this project"),
    ],
)
def test_what_a_command_would_not_notice_is_refused(
    project: Project, fdl: Fdl, exit_code: int, words: tuple[str, ...], message: str
) -> None:
    root = project({**TREE, "../other/fdl.yml": "training: {lr: 1}\n"})
    session = fdl("config", "set", *words)
    assert (session.exit, session.out) == (exit_code, "")
    assert message in session.err
    assert {name: (root / name).read_text() for name in TREE} == TREE


def test_a_variable_that_wins_refuses_the_change(project: Project, fdl: Fdl) -> None:
    project(TREE)
    change = ("config", "set", "--for", "train slow", "training.lr", "1")
    session = fdl(*change, env={"LR": "7"})
    assert session.exit == 1
    assert "no effect on `fdl train slow`: environment variable LR wins" in session.err
    assert "hint: fdl why training.lr train slow" in session.err
    assert fdl(*change).exit == 0


def test_where_takes_any_file_of_the_project(project: Project, fdl: Fdl) -> None:
    root = project(TREE)
    change = ("config", "set", "training.seed", "7", "--where")
    out = fdl(*change, "train/deep/fdl.yml").out
    assert out.startswith("changed train/deep/fdl.yml:3 for `fdl train deep`\ntraining.seed = 7\n")
    assert "  wins  7  train/deep/fdl.yml:3:9  manifest\n" in out
    assert fdl(*change, "fdl.ci.yml", cwd="train").exit == 0
    assert "training:\n  seed: 7\n" in (root / "train/fdl.ci.yml").read_text()
    assert fdl(*change, "../fdl.yml", cwd="train").exit == 2, "train is a project of its own there"
    session = fdl("config", "set", "--for", "train slow", "--where", "ci", "training.lr", "9")
    assert session.out.startswith("changed train/fdl.ci.yml:1 for `fdl train slow`\n")
    assert (
        (root / "train/fdl.ci.yml")
        .read_text()
        .startswith("commands: {slow: {training: {lr: 9}}}   # CI\n")
    )


def test_a_dry_run_for_a_command_writes_nothing(project: Project, fdl: Fdl) -> None:
    root = project(TREE)
    session = fdl("config", "set", "-n", "--for", "train quick", "training.lr", "0.01")
    assert session.exit == 0
    assert session.out.startswith("--- train/fdl.yml\n+++ train/fdl.yml (new)\n")
    assert {name: (root / name).read_text() for name in TREE} == TREE


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        ("commands.train.training.lr", ("lr: 0.1  ", "lr: 3  "), "train"),
        ("commands.train.commands.slow.training.lr", ("lr: 0.01}", "lr: 3}"), "train slow"),
    ],
)
def test_a_path_through_a_command_leads_into_its_own_manifest(
    project: Project, fdl: Fdl, path: str, change: tuple[str, str], words: str
) -> None:
    root = project(TREE)
    session = fdl("config", "set", path, "3")
    assert (session.exit, session.err) == (0, "")
    assert f" for `fdl {words}`" in session.out
    assert (root / "train/fdl.yml").read_text() == TREE["train/fdl.yml"].replace(*change)
    assert (root / "fdl.yml").read_text() == TREE["fdl.yml"]
    assert "--lr 3" in fdl(*words.split()).out


@pytest.mark.parametrize("where", [("--where", "train/fdl.yml"), ()])
def test_the_effect_is_proved_on_the_command_of_a_nested_manifest(
    project: Project, fdl: Fdl, where: tuple[str, ...]
) -> None:
    root = project(TREE)
    path = "training.lr" if where else "commands.train.training.lr"
    session = fdl("config", "set", path, "3", *where, env={"LR": "7"})
    assert (session.exit, session.out) == (1, "")
    assert "no effect on `fdl train`: environment variable LR wins" in session.err
    assert {name: (root / name).read_text() for name in TREE} == TREE


def test_the_same_flag_set_in_two_sections_of_a_preset_is_refused(
    project: Project, fdl: Fdl
) -> None:
    text = "entry: echo main.py\ncommands:\n  q:\n    training: {lr: 1}\n    options: {lr: 2}\n"
    root = project({"fdl.yml": text})
    session = fdl("config", "set", "--for", "q", "training.lr", "3")
    assert (session.exit, session.out) == (1, "")
    assert "fdl.yml:5:19: `options.lr` and `training.lr` (fdl.yml:4:20)" in session.err
    assert (root / "fdl.yml").read_text() == text


def test_settings_of_a_manifest_without_a_program_are_refused(project: Project, fdl: Fdl) -> None:
    files = {"fdl.yml": "commands: {train: }\n", "train/fdl.yml": "commands: {t: {run: make}}\n"}
    root = project(files)
    for where in ((), ("--where", "train/fdl.yml")):
        session = fdl("config", "set", "training.lr", "1", *where)
        assert (session.exit, session.out) == (1, "")
        assert "`training` has no effect: there is no `entry` at or above it" in session.err
    assert {name: (root / name).read_text() for name in files} == files


def test_settings_without_a_program_are_named_with_their_place(project: Project, fdl: Fdl) -> None:
    text = "training: {lr: 1}\ncommands: {t: {run: echo t}}\n"
    project({"fdl.yml": "commands: {train: , other: {path: train, entry: echo p.py}}\n",
             "train/fdl.yml": text, "alone/fdl.yml": text})  # fmt: skip
    session = fdl("train")
    assert session.exit == 1
    assert "train/fdl.yml:1:11: `training` has no effect" in session.err
    assert fdl("other").out == "p.py --lr 1\n", "the manifest above gives it a program"
    assert "fdl.yml:1:11: `training` has no effect" in fdl("config", "show", cwd="alone").err
    assert fdl("t", cwd="alone").out == "t\n", "a script does not read settings"


def test_an_option_that_the_program_of_the_project_lacks_is_refused(
    project: Project, fdl: Fdl
) -> None:
    program = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("data")
        parser.add_argument("--hidden", type=int)
        parser.parse_args()
        """
    text = "entry: python train.py\noptions: {hidden: 8}\ncommands: {train: {path: .}}\n"
    root = project({"fdl.yml": text, "train.py": program})
    for words, message in (
        (("options.hiden", "9"), "has no option `hiden`"),
        (("options.hidden", "wide"), "invalid value `wide` for `--hidden`"),
    ):
        session = fdl("config", "set", *words)
        assert (session.exit, session.out) == (1, "")
        assert message in session.err
    assert (root / "fdl.yml").read_text() == text
    # A manifest that is wrong already can be mended.
    (root / "fdl.yml").write_text(text.replace("hidden: 8", "hiden: 8, hidden: x"))
    assert fdl("config", "set", "options.hidden", "9").exit == 0


def test_a_value_that_only_some_readers_accept_in_braces_is_quoted(
    project: Project, fdl: Fdl
) -> None:
    text = "entry: echo p.py\ncommands:\n  p:\n    options: {a: 1}\n"
    root = project({"fdl.yml": text})
    assert fdl("config", "set", "commands.p.options.a", "0?").exit == 0
    assert (root / "fdl.yml").read_text() == text.replace("{a: 1}", '{a: "0?"}')


def test_a_file_that_only_some_readers_accept_is_refused_with_its_place(
    project: Project, fdl: Fdl
) -> None:
    text = "entry: echo p.py\ncommands:\n  p:\n    options: {a: 0?}\n"
    root = project({"fdl.yml": text})
    session = fdl("config", "set", "commands.p.options.a", "1")
    assert (session.exit, session.out) == (1, "")
    assert "fdl.yml:4:" in session.err
    assert (root / "fdl.yml").read_text() == text


def test_a_mapping_that_only_merges_another_one_gets_its_first_key(
    project: Project, fdl: Fdl
) -> None:
    text = """\
        entry: python x.py
        training: &t
          lr: 0.1
        commands:
          quick:
            training:
              <<: *t   # as above
        """
    root = project({"fdl.yml": text})
    before = (root / "fdl.yml").read_text()
    for field, value in (("seed", "1"), ("lr", "0.2")):
        done = fdl("config", "set", "--for", "quick", f"training.{field}", value)
        assert done.exit == 0, done.err
    added = "      <<: *t   # as above\n      lr: 0.2\n      seed: 1\n"
    changed = "      <<: *t   # as above\n      seed: 1\n      lr: 0.2\n"
    assert (root / "fdl.yml").read_text() in (
        before.replace("      <<: *t   # as above\n", added),
        before.replace("      <<: *t   # as above\n", changed),
    )


def test_the_null_of_a_program_is_shown_and_set_as_such(project: Project, fdl: Fdl) -> None:
    text = 'entry: python x.py\nstyle: hydra\noptions:\n  logger: "wandb"\n  list: [a, !null ]\n'
    root = project({"fdl.yml": text})
    assert fdl("config", "set", "options.logger", "!null").exit == 0
    assert (root / "fdl.yml").read_text() == text.replace('"wandb"', "!null")
    shown = fdl("config", "show").out
    assert "  logger: !null " in shown
    assert "  list: [a, !null ] " in shown
    assert fdl("config", "set", "options.logger", '"null"').exit == 0
    assert (root / "fdl.yml").read_text() == text.replace('"wandb"', '"null"')
