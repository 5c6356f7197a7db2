"""Settings reach a program in its own spelling."""

from __future__ import annotations

import json
import sys

import pytest

DECLARED = """
entry: python train.py
training: {batch_size: 8, lr: 0.1}
output: {dir: runs}
schema:
  strict: true
  args:
    - {name: config, type: path, required: false}
  options:
    num_epochs: {type: int, flags: [--num_epochs, --epochs, -n]}
    batch_size: {type: int, flags: [--batch_size]}
    lr: {type: float, flags: [-lr]}
    b: {type: int, flags: [-b]}
    output_dir: {type: path, flags: [--output_dir]}
    shuffle: {type: bool, default: true, negatives: [--no-shuffle]}
    cache: {type: bool, negatives: [--uncached]}
    amp: {type: bool}
    tags: {type: "list[string]", nargs: "+", commas: false}
    size: {type: "list[int]", nargs: 2, commas: false}
    tag: {type: "list[string]", commas: false}
    verbose: {type: bool, counted: true, flags: [-w, --verbose]}
    fp16: {type: string, flags: [--fp16]}
    mode: {type: string, choices: [fast, exact]}
commands:
  p:
    options: OPTIONS
"""


@pytest.fixture
def argv(project, fdl):
    """The argument vector that a manifest with some options leads to."""

    def made(manifest: str, options: str = "", *typed: str) -> list[str]:
        project({"fdl.yml": manifest.replace("OPTIONS", options)})
        session = fdl("--dry-run", "--json", "p", *typed)
        assert session.exit == 0, session.err
        return json.loads(session.out)["argv"][2:]

    return made


def test_sections_use_the_declared_spelling(argv):
    words = ["--batch_size", "8", "-lr", "0.1", "--output_dir", "runs"]
    assert argv(DECLARED, "{mode: fast}") == [*words, "--mode", "fast"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{num_epochs: 3}", ["--num_epochs", "3"]),
        ("{num-epochs: 3}", ["--num_epochs", "3"]),
        ("{epochs: 3}", ["--num_epochs", "3"]),
        ("{n: 3}", ["--num_epochs", "3"]),
        ("{b: 3}", ["-b", "3"]),
        ("{b: -3}", ["-b", "-3"]),
        ("{mode: fast}", ["--mode", "fast"]),
        ("{shuffle: true}", ["--shuffle"]),
        ("{shuffle: false}", ["--no-shuffle"]),
        ("{cache: false}", ["--uncached"]),
        ("{amp: false}", []),
        ("{tags: [a, b]}", ["--tags", "a", "b"]),
        ("{size: [3, 4]}", ["--size", "3", "4"]),
        ("{tag: [a, b]}", ["--tag", "a", "--tag", "b"]),
        ("{verbose: 3}", ["--verbose", "--verbose", "--verbose"]),
        ("{verbose: 0}", []),
        ("{fp16: true}", ["--fp16", "true"]),
        ("{config: a.yml, mode: fast}", ["--mode", "fast", "a.yml"]),
        ("{-lr: 3}", ["-lr", "3"]),
        ("{--mode: fast}", ["--mode", "fast"]),
    ],
)
def test_options_use_the_declared_spelling(argv, options, words):
    assert argv(DECLARED, options)[6:] == words


def test_true_is_a_flag_alone_only_where_the_program_declares_that(argv):
    declared = """
        entry: python train.py
        schema:
          options:
            report: {type: path, default: r.html, bare: true}
            pad: {type: string, default: x}
        commands:
          p: {options: OPTIONS}
        """
    assert argv(declared, "{report: true, pad: true}") == ["--pad", "true", "--report"]


def test_another_option_of_the_program_turns_a_switch_off(argv):
    declared = """
        entry: python train.py
        schema: {options: {grad: {type: bool, default: true}, no-grad: {type: bool}}}
        commands:
          p: {options: OPTIONS}
        """
    assert argv(declared, "{grad: false}") == ["--no-grad"]
    assert argv(declared, "{no-grad: false}") == []


def test_keys_and_values_of_a_mapping_are_words(argv):
    declared = """
        entry: python train.py
        schema: {options: {sizes: {type: string, nargs: "*", mapping: words}}}
        commands:
          p: {options: OPTIONS}
        """
    assert argv(declared, "{sizes: {a: [1, 2], b: 3}}") == ["--sizes", "a", "1", "2", "b", "3"]


def test_a_word_of_several_letters_is_read_letter_by_letter(project, fdl):
    project(
        {
            "fdl.yml": "entry: python train.py\ncommands: {p: {options: {batch: 1}}}\n"
            "schema: {strict: true, options: {batch: {type: int, flags: [--batch, -b]}}}\n"
        }
    )
    session = fdl("--dry-run", "--json", "p", "-b3")
    assert session.exit == 0, session.err
    assert json.loads(session.out)["argv"][-1] == "-b3"
    assert "unknown option `-z`" in fdl("--dry-run", "p", "-zb").err


def test_a_flag_keeps_its_origin_in_the_declared_spelling(project, fdl):
    project({"fdl.yml": DECLARED.replace("OPTIONS", "{num_epochs: 3}")})
    plan = json.loads(fdl("--dry-run", "--json", "p").out)
    (flag,) = [one for one in plan["flags"] if one["field"] == "options.num_epochs"]
    assert (flag["name"], flag["origin"]) == ("--num_epochs", "fdl.yml:25:27")
    assert "fdl.yml:25" in fdl("why", "num_epochs", "p").out
    assert "fdl.yml:25" in fdl("why", "epochs", "p").out


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("kebab", ["--batch-size", "8", "--optimizer.lr", "0.1", "--fast", "--max-len", "5"]),
        ("snake", ["--batch_size", "8", "--optimizer.lr", "0.1", "--fast", "--max_len", "5"]),
        ("keyvalue", ["batch_size=8", "optimizer.lr=0.1", "fast=true", "max_len=5"]),
        ("hydra", ["batch_size=8", "optimizer.lr=0.1", "fast=true", "max_len=5"]),
    ],
)
def test_without_a_schema_the_style_decides(argv, style, words):
    manifest = f"""
        entry: python train.py
        style: {style}
        training: {{batch_size: 8, optimizer: {{lr: 0.1}}}}
        commands:
          p: {{options: {{max_len: 5, fast: true}}}}
        """
    assert argv(manifest) == words


def test_a_style_beside_the_entry_of_a_command_counts(project, fdl):
    project(
        {
            "fdl.yml": "commands:\n  t: {path: t, entry: python b.py, style: snake}\n",
            "t/fdl.yml": "entry: python a.py\ntraining: {batch_size: 8}\n",
        }
    )
    plan = json.loads(fdl("--dry-run", "--json", "t").out)
    assert plan["argv"][1:] == ["b.py", "--batch_size", "8"]


def test_a_style_without_an_entry_is_refused(project, fdl):
    project({"fdl.yml": "commands: {t: {run: echo, style: snake}}\n"})
    session = fdl("t")
    assert session.exit == 1
    assert "`style` needs `entry` beside it" in session.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{a: [1, 'x y', true]}", ["a=[1,'x y',true]"]),
        ("{a: '1'}", ["a='1'"]),
        ("{a: it's}", ["a='it\\'s'"]),
        ("{a: 'x,y'}", ["a='x,y'"]),
        ("{a: '$${b.c}'}", ["a=${b.c}"]),
        ("{+a: 1}", ["+a=1"]),
        ("{++a.b: 1}", ["++a.b=1"]),
        ("{~a: true}", ["~a"]),
        ("{-m: true}", ["-m"]),
    ],
)
def test_values_follow_the_grammar_of_hydra(argv, options, words):
    manifest = "entry: python a.py\nstyle: hydra\ncommands:\n  p:\n    options: OPTIONS\n"
    assert argv(manifest, options) == words


def test_the_directory_of_a_run_is_that_of_hydra(argv):
    manifest = (
        "entry: python a.py\nstyle: hydra\noutput: {dir: out}\ncommands: {p: {options: {a: 1}}}"
    )
    assert argv(manifest) == ["hydra.run.dir=out", "a=1"]


@pytest.mark.slow
def test_hydra_reads_back_every_text():
    pytest.importorskip("hydra", reason="pip install hydra-core")
    from hypothesis import given, strategies as st

    from fdl.manifest.node import Node
    from fdl.plan.spelling import _hydra

    from hydra.core.override_parser.overrides_parser import OverridesParser  # isort: skip

    parser = OverridesParser.create()

    @given(st.text(st.characters(exclude_characters="\0\r\n"), max_size=12))
    def check(value: str) -> None:
        if not (value.startswith("${") and value.endswith("}")):
            node = Node(value, "fdl.yml", 1, 1, 1, 1)
            assert parser.parse_override(f"key={_hydra(node)}").value() == value

    check()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--num_epohcs", "3"], "did you mean `--num_epochs`?"),
        (["-x"], "unknown option `-x`"),
        (["--mode", "slow"], "invalid value `slow` for `--mode`"),
    ],
)
def test_typed_flags_are_checked_in_every_spelling(project, fdl, typed, message):
    project({"fdl.yml": DECLARED.replace("OPTIONS", "{mode: fast}")})
    session = fdl("--dry-run", "p", *typed)
    assert session.exit == 1
    assert message in session.err


@pytest.mark.parametrize(
    "typed",
    [
        ["-n", "3"],
        ["--epochs=3"],
        ["-lr", "0.1"],
        ["-b", "-3"],
        ["--no-shuffle"],
        ["--uncached"],
        ["--size", "3", "4", "a.yml"],
        ["--tags", "a", "b", "--verbose"],
        ["-ww"],
    ],
)
def test_every_declared_spelling_is_accepted(argv, typed):
    assert argv(DECLARED, "{mode: fast}", *typed)[-len(typed) :] == typed


PARSED = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("mode", choices=["fit", "test"], nargs="?")
parser.add_argument("--sizes", nargs="+", type=int, default=[1])
parser.add_argument("--pair", nargs=2, type=int, default=[1, 2])
parser.add_argument("--tag", action="append", default=[])
parser.add_argument("--name", action="append", default=[])
parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("-f", "--fast", action="store_true")
parser.add_argument("-b", "--batch-size", type=int, default=3)
parser.add_argument("--optimizer", default="sgd")
print(vars(parser.parse_args()))
"""

MANIFEST = "entry: python t.py\ncommands: {t: {options: {optimizer: sgd}}}\n"


@pytest.mark.parametrize(
    ("typed", "name", "value"),
    [
        ("--sizes 5 6 7", "sizes", [5, 6, 7]),
        ("--sizes 5 --sizes 6", "sizes", [6]),
        ("--pair 5 6 fit", "pair", [5, 6]),
        ("--tag a --tag b,c", "tag", ["a", "b,c"]),
        ("--optimizer adam --optimizer lion", "optimizer", "lion"),
        ("-fb 9", "fast", True),
        ("-fb 9", "batch_size", 9),
        ("-fb9", "batch_size", 9),
        ("--opt adam", "optimizer", "adam"),
        ("--no-shuffle", "shuffle", False),
    ],
)
def test_what_was_typed_is_recorded_as_the_program_reads_it(project, fdl, typed, name, value):
    root = project({"fdl.yml": MANIFEST, "t.py": PARSED})
    done = fdl("t", *typed.split())
    assert done.exit == 0, done.err
    assert f"'{name}': {value!r}" in done.out
    (config,) = root.glob("runs/t/*/config.json")
    assert json.loads(config.read_text())[name] == {"value": value, "origin": "command line"}
    (field,) = json.loads(fdl("why", "--json", name, "t", *typed.split()).out)["fields"]
    assert field["value"] == value


def test_what_the_manifest_generates_is_recorded_as_the_program_reads_it(project, fdl):
    options = "{sizes: [5, 6], pair: [7, 8], tag: [a, b], name: [c], shuffle: false}"
    root = project(
        {"fdl.yml": f"entry: python t.py\ncommands: {{p: {{options: {options}}}}}", "t.py": PARSED}
    )
    done = fdl("p")
    assert done.exit == 0, done.err
    (config,) = root.glob("runs/p/*/config.json")
    recorded = json.loads(config.read_text())
    for name in ("sizes", "pair", "tag", "name", "shuffle"):
        assert f"'{name}': {recorded[name]['value']!r}" in done.out


def test_an_unknown_option_of_a_preset_names_the_declared_one(project, fdl):
    project({"fdl.yml": DECLARED.replace("OPTIONS", "{num_epohcs: 3}")})
    session = fdl("p")
    assert "fdl.yml:25:27" in session.err
    assert "did you mean `num_epochs`?" in session.err


def test_help_and_completion_show_the_declared_spelling(project, fdl):
    project({"fdl.yml": DECLARED.replace("OPTIONS", "{mode: fast}")})
    page = fdl("p", "--help", "all").out
    assert "-n, --num_epochs INT" in page
    assert "-lr FLOAT" in page
    assert "--shuffle / --no-shuffle" in page
    offered = fdl("__complete", "bash", "--", "p", "--").out.splitlines()
    assert {"--num_epochs", "--no-shuffle", "--uncached"} <= {one.strip() for one in offered}


PROGRAM = """
import argparse

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--seed", type=int, default=0)
commands = parser.add_subparsers(dest="command", required=True)
fit = commands.add_parser("fit", allow_abbrev=False)
fit.add_argument("--max_epochs", type=int, default=1)
test = commands.add_parser("test", allow_abbrev=False)
test.add_argument("--ckpt_path")
print(vars(parser.parse_args()))
"""


@pytest.fixture
def with_subcommands(project):
    """A project around a program with the subcommands fit and test, whose schema is known."""

    def made(manifest: str):
        folder = project({"fdl.yml": manifest, "train.py": PROGRAM})
        # The interpreter that has fdl, as an installed project has it.
        text = (folder / "fdl.yml").read_text().replace("python", sys.executable)
        (folder / "fdl.yml").write_text(text)
        return folder

    return made


def planned(fdl, *words: str) -> list[str]:
    session = fdl("--dry-run", "--json", *words)
    assert session.exit == 0, session.err
    return json.loads(session.out)["argv"][1:]


def test_a_typed_subcommand_comes_before_the_generated_options(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {t: }\n",
            "t/fdl.yml": "entry: PYTHON train.py\ntraining: {seed: 7}\n"
            "commands: {p: {options: {max_epochs: 2}}}\n",
            "t/train.py": PROGRAM,
        }
    )
    file = folder / "t/fdl.yml"
    file.write_text(file.read_text().replace("PYTHON", sys.executable))
    assert planned(fdl, "t", "fit", "--max_epochs", "3") == [
        *("train.py", "--seed", "7", "fit", "--max_epochs", "3")
    ]
    assert planned(fdl, "t", "p", "fit") == ["train.py", "--seed", "7", "fit", "--max_epochs", "2"]
    assert "--max_epochs" in fdl("__complete", "bash", "--", "t", "fit", "--").out
    assert "--max_epochs INT" in fdl("t", "fit", "--help").out
    assert "fit" in fdl("__complete", "bash", "--", "t", "").out


def test_a_preset_selects_a_subcommand(with_subcommands, fdl):
    with_subcommands(
        "entry: python train.py\n"
        "training: {seed: 7}\n"
        "commands:\n"
        "  quick: {subcommand: fit, options: {max_epochs: 2}}\n"
        "  check: {subcommand: test, options: {ckpt_path: last.ckpt}}\n"
        "  wrong: {subcommand: test, options: {max_epochs: 2}}\n"
    )
    words = ["train.py", "--seed", "7", "fit", "--max_epochs", "2"]
    assert planned(fdl, "quick") == words
    assert planned(fdl, "quick", "--max_epochs", "4") == [*words, "--max_epochs", "4"]
    assert planned(fdl, "check") == [
        *("train.py", "--seed", "7", "test", "--ckpt_path", "last.ckpt")
    ]
    wrong = fdl("wrong")
    assert (wrong.exit, "has no option `max_epochs`" in wrong.err) == (1, True)
    typo = fdl("quick", "--max_epohcs", "4")
    assert "did you mean `--max_epochs`?" in typo.err
    # Where a long path makes the line break, the page puts a backslash.
    brief = " ".join(fdl("quick", "--help").out.replace("\\\n", " ").split())
    assert "--seed 7 fit --max_epochs 2 [ARGS]" in brief
    page = fdl("quick", "--help", "all").out
    assert "--max_epochs INT" in page
    assert "--ckpt_path" not in page
    assert "'max_epochs': 2" in fdl("quick").out


def test_options_without_a_schema_follow_the_subcommand(project, fdl):
    project(
        {
            "fdl.yml": "entry: ./train fit\nstyle: snake\n"
            "commands: {p: {options: {max_len: 2}}, q: {subcommand: test, options: {a: 1}}}\n"
        }
    )
    assert planned(fdl, "p") == ["fit", "--max_len", "2"]
    assert planned(fdl, "q") == ["fit", "test", "--a", "1"]


def test_a_key_that_turns_a_flag_off_is_refused_with_the_value_to_write(project, fdl):
    manifest = DECLARED.replace("OPTIONS", "{no_shuffle: true}").replace(
        "[--no-shuffle]", "[--no_shuffle]"
    )
    project({"fdl.yml": manifest})
    refused = fdl("p").err
    assert "the program has no option `no_shuffle`" in refused
    assert "hint: shuffle: false" in refused


def test_an_argument_does_not_take_the_place_of_the_one_before_it(project, fdl):
    manifest = """
        entry: echo
        schema: {args: [{name: data, type: string, choices: [d]},
                        {name: out, type: string, required: false}]}
        commands: {p: {options: {out: o}}, q: {options: {data: d}}}
        """
    project({"fdl.yml": manifest})
    refused = fdl("p", "x")
    assert "fdl.yml:4:31: `options.out` would be taken for `<data>`" in refused.err
    assert "hint: set `data` in `options`, too" in refused.err
    assert fdl("-q", "q", "x").out == "d x\n"
    project({"fdl.yml": manifest.replace("echo", "echo d")})
    assert fdl("-q", "p").out == "d o\n"
    # Words of a launcher are not arguments of the program.
    for start in ("python -m torch.distributed.run main.py", "uv run main.py"):
        project({"fdl.yml": manifest.replace("echo", start), "main.py": ""})
        assert "would be taken for `<data>`" in fdl("-n", "p").err
        project({"fdl.yml": manifest.replace("echo", f"{start} d")})
        assert f"{start} d o" in fdl("-n", "p").out
