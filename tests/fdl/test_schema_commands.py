"""Programs that describe their arguments, as one meets them on the command line."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.fdl.test_help import section

PROGRAM = """
    import sys
    from pathlib import Path
    from typing import Literal

    from fdl import FdlArgs, arg, option

    class Args(FdlArgs):
        '''Fit a model.'''
        data: Path = arg(help="Where the data is")
        epochs: int = option(default=10, short="n", help="Passes over the data")
        model: Literal["linear", "conv"] = option(default="linear", help="Which model")
        token: str = option(default="planted-secret-123", env="HUB_TOKEN")
        tags: list[str] = option(short="t")
        quiet_start: bool = option()

    with open("asked", "a") as record:
        record.write(" ".join(sys.argv[1:]) + "\\n")
    print(Args.parse_or_schema(sys.argv[1:]).epochs)
    """

ANSWERING = """
    # Says what a program with FdlArgs says, in a tenth of the time: where only the answer counts.
    import sys

    with open("asked", "a") as record:
        record.write(" ".join(sys.argv[1:]) + "\\n")
    if "--fdl-schema" in sys.argv:
        print('''{
            "strict": true,
            "args": [{"name": "data", "type": "path", "required": true}],
            "options": {
                "epochs": {"type": "int", "default": 10, "short": "n"},
                "model": {"type": "string", "choices": ["linear", "conv"],
                          "description": "Which model"},
                "tags": {"type": "list[string]", "short": "t"}
            }
        }''')
    """

MANIFEST = """
    entry: python main.py
    commands:
      good: {options: {model: conv, epochs: 2}}
      bad: {options: {model: cnov}}
    """

FILES = {"fdl.yml": "commands: {train: }", "train/fdl.yml": MANIFEST, "train/main.py": PROGRAM}
QUICK_FILES = {**FILES, "train/main.py": ANSWERING}

CACHE = "train/.fdl/schema-cache/train.json"


def asked(folder: Path) -> list[str]:
    """The arguments of every start of the program."""
    record = folder / "asked"
    return record.read_text().splitlines() if record.exists() else []


def touched(file: Path, text: str) -> None:
    """Edit a file; its time moves on even where the clock is coarse."""
    file.write_text(text)
    stamp = file.stat().st_mtime_ns + 1_000_000_000
    os.utime(file, ns=(stamp, stamp))


@pytest.mark.case("cli", 50)
def test_a_program_that_knows_the_question_is_asked_once_and_again_after_an_edit(project, fdl):
    folder = project(QUICK_FILES)
    page = fdl("train", "--help")
    assert (page.exit, page.err) == (0, "")
    assert asked(folder / "train") == ["--fdl-schema"]
    assert json.loads((folder / CACHE).read_text())["schema"]["options"]["epochs"]["default"] == 10
    assert (folder / "train/.fdl/.gitignore").read_text() == "*\n"
    assert fdl("train", "--help").out == page.out
    assert fdl("train", "good", "--help").exit == 0
    assert asked(folder / "train") == ["--fdl-schema"]
    main = folder / "train/main.py"
    touched(main, main.read_text().replace('"default": 10', '"default": 30'))
    assert "[default: 30]" in fdl("train", "--help").out
    assert asked(folder / "train") == ["--fdl-schema", "--fdl-schema"]


@pytest.mark.case("cli", 50)
def test_a_script_that_does_not_mention_the_question_is_never_started_by_help(project, fdl):
    silent = "open('asked', 'a').write('ran')\n"
    folder = project({**FILES, "train/main.py": silent})
    for typed in (["train", "--help"], ["train", "good", "--help"], ["--help"]):
        assert fdl(*typed).exit == 0
    assert fdl("--dry-run", "train").exit == 0
    assert asked(folder / "train") == []
    assert not (folder / "train/.fdl/schema-cache").exists()
    assert "Usage: fdl train [<preset>] [ARGS]\n" in fdl("train", "--help").out


def test_only_help_asks_never_a_run_a_dry_run_or_a_page_after_an_error(project, fdl):
    folder = project(QUICK_FILES)
    assert fdl("--dry-run", "train", "d").exit == 0
    assert fdl("train", "d", "--epochs", "3").exit == 0
    assert fdl("nope").exit == 1
    assert fdl("--help").exit == 0
    assert asked(folder / "train") == ["d --epochs 3"]


def test_the_help_page_shows_what_the_program_declares(project, fdl):
    project(FILES)
    page = fdl("train", "--help", env={"COLUMNS": "100"}).out
    assert page.startswith("fdl train - Fit a model.\n")
    assert "Usage: fdl train [<preset>] [OPTIONS] <data>\n" in page
    assert section(page, "Arguments") == [
        "  <data>    Where the data is",
        "  <preset>  Named settings to run with",
        "    good",
        "    bad",
    ]
    assert section(page, "Options") == [
        "  -n, --epochs INT      Passes over the data [default: 10]",
        "      --model TEXT      Which model [default: linear] [possible: linear, conv]",
        "      --token TEXT      [env: HUB_TOKEN]",
        "  -t, --tags TEXT       [repeatable, or separated by commas]",
        "      --quiet-start",
        "  -h, --help            Show this page",
        "      --refresh-schema  Ask the program again which arguments it takes",
    ]
    assert "planted-secret" not in page


def test_no_page_shows_a_secret_of_the_manifest_or_the_program(project, fdl):
    manifest = """
        entry: python main.py --api-key planted-1
        ddp: {mode: sync}
        schema: {options: {token: {type: string, default: planted-2}, x: {type: string}}}
        commands:
          p: {options: {db_password: planted-3, x: !secret planted-4}}
          r: {run: curl --token=planted-5 !}
          s: {run: !secret planted-6}
        """
    project({"fdl.yml": "commands: {t: }", "t/fdl.yml": manifest})
    for typed in (["t"], ["t", "p"], ["t", "r"], ["t", "s"]):
        page = fdl(*typed, "--help")
        assert (page.exit, page.err) == (0, "")
        assert "planted" not in page.out
        assert "<secret>" in page.out
    assert "--token TEXT      [default: <secret>]" in fdl("t", "--help").out


def test_a_preset_page_tells_which_options_the_program_declares(project, fdl):
    presets = "entry: python main.py\ncommands: {p: {options: {model: conv, depth: 3, tags: [a]}}}"
    folder = project({**QUICK_FILES, "train/fdl.yml": presets})
    assert section(fdl("train", "p", "-h").out, "Options") == [
        "  --depth 3     (refused: the program has no such option)  train/fdl.yml:2:46",
        "  --model conv  Which model                                train/fdl.yml:2:33",
        "  --tags a      (declared by the program)                  train/fdl.yml:2:55",
    ]
    main = folder / "train/main.py"
    touched(main, '# FdlArgs\nprint(\'{"options": {"model": {"type": "string"}}}\')')
    assert "--depth 3     (not declared)" in fdl("train", "p", "-h").out


@pytest.mark.case("cli", 48)
def test_a_strict_program_refuses_unknown_flags_and_values_before_it_starts(project, fdl):
    folder = project(FILES)
    assert fdl("train", "--help").exit == 0
    typo = fdl("train", "d", "--epoch", "3")
    assert (typo.exit, typo.out) == (1, "")
    assert typo.err.splitlines() == [
        "error: `fdl train`: unknown option `--epoch`",
        "hint: did you mean `--epochs`?",
        "Usage: fdl train [OPTIONS] <data>",
        "see fdl train --help",
    ]
    choice = fdl("train", "d", "--model", "cnov")
    assert choice.exit == 1
    assert choice.err == (
        "error: `fdl train`: invalid value `cnov` for `--model` -- allowed: linear, conv\n"
        "hint: did you mean `conv`?\n"
        "Usage: fdl train [OPTIONS] <data>\nsee fdl train --help\n"
    )
    assert fdl("train", "d", "--model=x").exit == 1
    assert fdl("train", "good", "d", "-z").exit == 1
    # The class in its source says all that the program could answer.
    assert asked(folder / "train") == []
    assert fdl("train", "d", "--version").exit == 2
    assert fdl("train", "--fdl-schema").exit == 0
    assert fdl("train", "d", "--", "--epoch").exit == 2
    assert len(asked(folder / "train")) == 3


@pytest.mark.case("cli", 48)
def test_a_lenient_program_gets_unknown_flags_but_no_wrong_values(project, fdl):
    inline = """
        entry: echo
        schema:
          args:
            - {name: size, type: string, choices: [small, large]}
          options:
            mode: {type: string, choices: [fast, exact], short: m}
            bits: {type: int, choices: [8, 16]}
            tags: {type: 'list[string]', choices: [a, b]}
            dry: {type: bool, short: d}
        """
    project({"fdl.yml": "commands: {t: }", "t/fdl.yml": inline})
    assert fdl("t", "--weird").out == "--weird\n"
    assert fdl("t", "--weird", "huge", "-zm").out == "--weird huge -zm\n"
    for passes in (
        ["small"], ["--dry", "large"], ["--mode", "fast"], ["-m=exact"], ["-dm", "fast"],
        ["--bits", "8.0"], ["--tags", "a,b"], ["--mode"], ["--", "--mode", "slow"], ["-O3"],
        ["--dry", "--", "huge"], ["--help-me"],
    ):  # fmt: skip
        assert fdl("t", *passes).exit == 0, passes
    for refused in (
        ["huge"], ["-d", "huge"], ["--mode", "slow"], ["--mode=slow"], ["-m", "slow"],
        ["-m=slow"], ["-dm", "slow"], ["--bits", "9"], ["--tags", "a,c"], ["--weird", "--mode=x"],
        ["--dry", "small", "--mode=x", "--"],
    ):  # fmt: skip
        session = fdl("t", *refused)
        assert (session.exit, session.out) == (1, ""), refused
        assert "-- allowed: " in session.err


@pytest.mark.case("cli", 49)
def test_a_bad_preset_stands_in_the_way_of_nobody_else(project, fdl):
    folder = project(FILES)
    page = fdl("train", "--help")
    assert (page.exit, page.err) == (0, "")
    assert fdl("train", "bad", "--help").exit == 0
    assert fdl("train", "good", "d").out == "2\n"
    bad = fdl("train", "bad", "d")
    assert (bad.exit, bad.out) == (1, "")
    assert bad.err == (
        "error: train/fdl.yml:4:26: preset `fdl train bad`: invalid value `cnov` for `--model` "
        "-- allowed: linear, conv\nhint: did you mean `conv`?\n"
    )
    assert asked(folder / "train") == ["--epochs 2 --model conv d"]


def test_presets_are_compared_loosely_and_undeclared_keys_only_when_strict(project, fdl):
    schema = "options: {bits: {type: string, choices: ['8', '16']}, a-b: {type: int}}"
    manifest = """
        entry: echo
        schema: {%s, strict: %s}
        commands:
          number: {options: {bits: 8}}
          words: {options: {a_b: 1, bits: null}}
          extra: {options: {bit: 8}}
        """
    folder = project({"fdl.yml": "commands: {t: }", "t/fdl.yml": manifest % (schema, "false")})
    for preset in ("number", "words", "extra"):
        assert fdl("t", preset).exit == 0
    touched(folder / "t/fdl.yml", (folder / "t/fdl.yml").read_text().replace("false", "true"))
    assert fdl("t", "number").exit == fdl("t", "words").exit == 0
    extra = fdl("t", "extra")
    assert extra.exit == 1
    assert "t/fdl.yml:6:26: preset `fdl t extra`: the program has no option `bit`" in extra.err
    assert "hint: did you mean `bits`?" in extra.err


def test_a_secret_value_is_not_repeated_in_the_refusal(project, fdl):
    manifest = "entry: echo\nschema: {options: {api-key: {type: string, choices: [abc, def]}}}"
    project({"fdl.yml": "commands: {t: }", "t/fdl.yml": manifest})
    refused = fdl("t", "--api-key", "planted-value")
    assert refused.exit == 1
    assert "invalid value `<secret>` for `--api-key`" in refused.err


def test_a_broken_schema_in_the_manifest_is_reported_with_its_line(project, fdl):
    manifest = "entry: echo\nschema:\n  options:\n    lr: {type: flot}\n"
    project({"fdl.yml": "commands: {t: , u: {run: echo u}}", "t/fdl.yml": manifest})
    for typed in (["t"], ["t", "--help"]):
        session = fdl(*typed)
        assert session.exit == 1
        assert "t/fdl.yml:4:16: in `schema`: `options.lr.type` is `flot`" in session.err
    assert fdl("u").exit == fdl("--help").exit == 0


def test_the_answer_of_the_program_is_stronger_than_the_manifests_schema(project, fdl):
    inline = MANIFEST.rstrip() + "\n    schema: {strict: true, options: {old: {type: int}}}\n"
    folder = project({**QUICK_FILES, "train/fdl.yml": inline})
    assert fdl("train", "d", "--epochs", "1").exit == 1
    assert "--epochs INT" in fdl("train", "--help").out
    assert fdl("train", "d", "--epochs", "1").exit == 0
    touched(folder / "train/main.py", "# FdlArgs\nraise SystemExit(3)")
    page = fdl("train", "--help")
    assert (page.exit, page.err) == (0, "")
    assert "--old INT" in page.out


def test_refreshing_by_flag_asks_whatever_the_script_says(project, fdl):
    silent = """
        import sys
        open("asked", "a").write(" ".join(sys.argv[1:]) + "\\n")
        print('Welcome! {"options": {"x": {"type": "int"}}} Bye.')
        """
    folder = project({**FILES, "train/main.py": silent})
    shown = fdl("--dry-run", "train", "--refresh-schema")
    assert (shown.exit, asked(folder / "train")) == (0, [])
    assert shown.out == f"would run, in {folder}/train: python main.py --fdl-schema\n"
    done = fdl("train", "--refresh-schema")
    assert (done.exit, done.out, done.err) == (0, "fdl train: 0 arguments, 1 option\n", "")
    assert fdl("train", "good", "--refresh-schema").exit == 0
    assert asked(folder / "train") == ["--fdl-schema"] * 2
    assert "--x INT" in fdl("train", "--help").out
    assert fdl("train", "--", "--refresh-schema").exit == 0
    assert asked(folder / "train")[-1] == "--refresh-schema"


def test_a_failed_refresh_says_why_with_the_programs_last_words(project, fdl):
    failing = "import sys\nfor n in range(9): print('line', n, file=sys.stderr)\nsys.exit(3)"
    folder = project({**FILES, "train/main.py": f"# FdlArgs\n{failing}"})
    page = fdl("train", "--help")
    assert (page.exit, page.err) == (0, "")
    words = " ".join(page.out.split())
    assert "`fdl train --refresh-schema` asks again and shows the error." in words
    session = fdl("train", "--refresh-schema")
    assert (session.exit, session.out) == (1, "")
    assert session.err.startswith(
        "error: train/fdl.yml:1:8: `python main.py --fdl-schema` ended with exit code 3\n"
        "  line 5\n  line 6\n  line 7\n  line 8\nhint: "
    )
    assert json.loads((folder / CACHE).read_text())["schema"] is None


def test_a_failure_is_remembered_until_something_changes(project, fdl):
    failing = "# FdlArgs\nopen('asked', 'a').write('x\\n')\nraise SystemExit(1)\n"
    folder = project({**FILES, "train/main.py": failing})
    fdl("train", "--help")
    fdl("train", "good", "--help")
    assert asked(folder / "train") == ["x"]
    touched(folder / "train/main.py", failing + "# edited")
    fdl("train", "--help")
    assert asked(folder / "train") == ["x", "x"]


@pytest.mark.case("cli", 51)
def test_clearing_one_command_deletes_its_schema_and_empty_folders(project, fdl):
    folder = project({**QUICK_FILES, "fdl.yml": "commands: {train: , other: }",
                      "other/fdl.yml": MANIFEST, "other/main.py": ANSWERING})  # fmt: skip
    assert fdl("self", "schema", "refresh").exit == 0
    shown = fdl("self", "schema", "clear", "train", "-n")
    assert (shown.exit, shown.out) == (0, f"would delete {CACHE}\n")
    assert (folder / CACHE).exists()
    done = fdl("self", "schema", "clear", "train")
    assert (done.exit, done.out) == (0, f"deleted {CACHE}\n")
    assert not (folder / "train/.fdl").exists()
    assert (folder / "other/.fdl/schema-cache/other.json").exists()
    again = fdl("self", "schema", "clear", "train")
    assert (again.exit, again.out, again.err) == (0, "", "no schema is cached for `train`\n")
    assert fdl("train", "d").exit == 0
    assert fdl("self", "schema", "refresh", "train").exit == 0
    assert fdl("self", "schema", "clear").exit == 0
    # The cache of the manifest itself is not a schema's business.
    assert sorted(path.name for path in (folder / "train/.fdl").iterdir()) == [
        ".gitignore",
        "manifest.json",
    ]
    assert not (folder / "other/.fdl").exists()


@pytest.mark.case("cli", 51)
def test_the_list_tells_fresh_stale_failed_and_orphaned_schemas_apart(project, fdl):
    root = "commands: {a: {path: jobs/a}, b: {path: jobs/b}, c: {path: jobs/c}, up: }"
    files = {"fdl.yml": root, "up/fdl.yml": "commands: {d: {path: ../jobs/d}}"}
    for name in "abcd":
        files[f"jobs/{name}/fdl.yml"] = MANIFEST
        files[f"jobs/{name}/main.py"] = ANSWERING
    folder = project(files)
    (folder / "jobs/c/main.py").write_text("# FdlArgs\nraise SystemExit(1)")
    assert fdl("self", "schema", "list", "--json").out == "[]\n"
    assert fdl("self", "schema", "refresh").exit == 1
    orphan = folder / "gone/.fdl/schema-cache/gone.json"
    skipped = folder / "node_modules/x/.fdl/schema-cache/x.json"
    for file in (orphan, skipped):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    edited = folder / "jobs/b/main.py"
    touched(edited, edited.read_text() + "# edited")
    listed = fdl("self", "schema", "list", "--json")
    assert (listed.exit, listed.err) == (0, "")
    rows = json.loads(listed.out)
    assert {row.pop("source") for row in rows} == {"program"}
    assert all(row.pop("age_s") >= 0 for row in rows)
    assert rows == [
        {"name": "gone", "path": "gone/.fdl/schema-cache/gone.json", "status": "orphan"},
        {"name": "a", "path": "jobs/a/.fdl/schema-cache/a.json", "status": "fresh"},
        {"name": "b", "path": "jobs/b/.fdl/schema-cache/b.json", "status": "stale"},
        {"name": "c", "path": "jobs/c/.fdl/schema-cache/c.json", "status": "failed"},
        {"name": "up d", "path": "jobs/d/.fdl/schema-cache/d.json", "status": "fresh"},
    ]
    assert fdl("self", "schema", "refresh", "b").exit == 0
    assert (
        fdl("self", "schema", "clear", "gone").out == "deleted gone/.fdl/schema-cache/gone.json\n"
    )
    assert fdl("self", "schema", "clear", "up", "d").exit == 0
    statuses = {
        row["name"]: row["status"]
        for row in json.loads(fdl("self", "schema", "list", "--json").out)
    }
    assert statuses == {"a": "fresh", "b": "fresh", "c": "failed"}
    assert not (folder / "gone/.fdl").exists()


def test_the_list_says_where_each_schema_came_from_and_its_age(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {answers: , declared: , written: , silent: }",
            "answers/fdl.yml": MANIFEST,
            "answers/main.py": ANSWERING,
            "declared/fdl.yml": "entry: python main.py",
            "declared/main.py": """
                import argparse
                parser = argparse.ArgumentParser()
                parser.add_argument("--lr", type=float)
                parser.parse_args()
                """,
            "written/fdl.yml": "entry: echo\nschema: {options: {lr: {type: float}}}",
            "silent/fdl.yml": "entry: echo",
        }
    )
    assert fdl("self", "schema", "refresh", "answers").exit == 0
    assert fdl("declared").exit == 0
    day_before = (folder / "written/fdl.yml").stat().st_mtime - 24 * 3600
    os.utime(folder / "written/fdl.yml", (day_before, day_before))
    rows = [line.split("  ") for line in fdl("self", "schema", "list").out.splitlines()]
    rows = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("answers", "fresh", "program answered"),
        ("declared", "fresh", "read from source"),
        ("written", "fresh", "written in the manifest"),
    ]
    assert rows[2][3].startswith("24h")
    assert rows[2][4] == "written/fdl.yml"


def test_refreshing_everything_asks_only_those_that_can_be_expected_to_answer(project, fdl):
    files = {
        "fdl.yml": "commands: {train: , silent: , slow: , broken: , run: {run: echo}}",
        "train/fdl.yml": MANIFEST,
        "train/main.py": ANSWERING,
        "silent/fdl.yml": "entry: python main.py",
        "silent/main.py": "open('asked', 'a').write('ran\\n')",
        "slow/fdl.yml": "{entry: uv run main.py, compile: true}",
        "broken/fdl.yml": "[",
    }
    folder = project(files)
    (folder / "bin").mkdir()
    tool = folder / "bin/uv"
    tool.write_text("#!/bin/sh\necho '{\"strict\": true}'\n")
    tool.chmod(0o755)
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = fdl("self", "schema", "refresh", "-n", env={"PATH": path})
    assert asked(folder / "train") == []
    assert f"would run, in {folder}/slow: uv run main.py --fdl-schema\n" in shown.out
    done = fdl("self", "schema", "refresh", env={"PATH": path})
    assert done.exit == 1
    assert done.out.splitlines() == [
        "fdl train: 1 argument, 3 options",
        "fdl slow: 0 arguments, 0 options",
    ]
    assert "silent: not asked, because its program does not mention `FdlArgs`" in done.err
    assert "error: broken/fdl.yml:" in done.err
    assert asked(folder / "silent") == []
    assert fdl("self", "schema", "refresh", "train").exit == 0
    assert fdl("self", "schema", "refresh", "silent").exit == 1
    assert asked(folder / "silent") == ["ran"]
    none = fdl("self", "schema", "refresh", "nope")
    assert (none.exit, none.err) == (0, "no program to ask: `nope` names none\n")


def test_help_that_only_reads_an_example_writes_nothing(project, fdl):
    folder = project({**QUICK_FILES, "train/fdl.yml.example": MANIFEST})
    (folder / "train/fdl.yml").unlink()
    assert "--epochs INT" in fdl("train", "--help").out
    assert not (folder / "train/.fdl").exists()


def test_bare_schema_is_its_help(fdl):
    assert "Usage: fdl self schema" in fdl("self", "schema").out


def test_completion_of_clear_offers_caches_whose_manifest_is_gone(project, fdl):
    folder = project({"fdl.yml": "commands: {train: }", "train/fdl.yml": "entry: python x.py"})
    cache = folder / "gone/.fdl/schema-cache/gone.json"
    cache.parent.mkdir(parents=True)
    cache.write_text("{}")
    assert fdl("__complete", "bash", "--", "self", "schema", "clear", "").out == "train\ngone\n"
    assert fdl("__complete", "bash", "--", "self", "schema", "refresh", "").out == "train\n"
    assert (
        fdl("self", "schema", "clear", "gone").out == "deleted gone/.fdl/schema-cache/gone.json\n"
    )


def test_what_was_read_from_the_source_can_be_cleared(project, fdl):
    program = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr')\np.parse_args()"
    )
    folder = project(
        {"fdl.yml": "commands: {t: }", "t/fdl.yml": "entry: python main.py", "t/main.py": program}
    )
    assert fdl("t").exit == 0
    known = "t/.fdl/source-cache/t.json"
    assert fdl("self", "schema", "clear", "-n").out == f"would delete {known}\n"
    assert fdl("self", "schema", "clear", "t").out == f"deleted {known}\n"
    assert not (folder / known).exists()
