"""Flags that every command understands, and the first words a user types."""

import pytest

from fdl import __version__
from tests.fdl.terminal import Terminal

MANIFEST = """
    description: A project
    commands:
      show:
        run: printf '%s\\n' "$FLODL_VERBOSITY"
      color:
        run: printf '%s\\n' "$FLODL_COLOR"
      list: {run: ls}
    """


@pytest.mark.case("cli", 1)
def test_bare_fdl_shows_the_help_page(project, fdl):
    project({"fdl.yml": MANIFEST})
    bare, asked = fdl(), fdl("--help")
    assert (bare.exit, bare.err) == (0, "")
    assert bare.out == asked.out
    assert "Usage: fdl" in bare.out
    assert asked.exit == 0


@pytest.mark.case("cli", 2)
def test_forcing_and_forbidding_colour_at_once_is_refused(project, fdl):
    project({"fdl.yml": MANIFEST})
    done = fdl("--ansi", "--no-ansi", "list")
    assert (done.exit, done.out) == (1, "")
    assert "mutually exclusive" in done.err
    assert fdl("list", "--no-ansi", "--ansi").exit == 1


@pytest.mark.case("cli", 3)
def test_the_last_verbosity_flag_wins(project, fdl):
    project({"fdl.yml": MANIFEST})
    assert fdl("-v", "-q", "show").out == "0\n"
    assert fdl("-q", "-vv", "show").out == "3\n"


@pytest.mark.case("cli", 4)
def test_verbosity_is_taken_before_the_separator_and_left_alone_behind_it(project, fdl):
    project({"fdl.yml": MANIFEST})
    assert fdl("show", "-vvv").out == "4\n"
    assert fdl("show", "--", "-v").out == "\n-v\n"


@pytest.mark.parametrize(("flag", "level"), [("-v", "2"), ("--quiet", "0"), ("-vvv", "4")])
def test_verbosity_flags_reach_children_as_numbers(project, fdl, flag, level):
    project({"fdl.yml": MANIFEST})
    assert fdl(flag, "show").out == f"{level}\n"


def test_without_flags_children_inherit_what_was_set(project, fdl):
    project({"fdl.yml": MANIFEST})
    assert fdl("show", env={"FLODL_VERBOSITY": "debug"}).out == "debug\n"
    assert fdl("color", env={"FLODL_COLOR": "never"}).out == "never\n"


def test_colour_flags_reach_children(project, fdl):
    project({"fdl.yml": MANIFEST})
    assert fdl("--ansi", "color").out == "always\n"
    assert fdl("color", "--no-ansi", env={"FLODL_COLOR": "always"}).out == "never\n"


@pytest.mark.case("cli", 5)
def test_no_color_beats_force_color_on_a_terminal_and_a_flag_beats_both(project):
    folder = project({"fdl.yml": MANIFEST})
    variables = {"NO_COLOR": "1", "FORCE_COLOR": "1"}
    with Terminal("--help", cwd=folder, env=variables) as plain:
        assert plain.finish() == 0
    assert "Usage:" in plain.text
    assert "\x1b" not in plain.text
    with Terminal("--help", "--ansi", cwd=folder, env=variables) as coloured:
        assert coloured.finish() == 0
    assert "\x1b[1mUsage:\x1b[0m" in coloured.text


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
        ({"FLODL_COLOR": "always", "NO_COLOR": "1"}, True),
        ({"FLODL_COLOR": "never", "FORCE_COLOR": "1"}, False),
        ({"FLODL_COLOR": "purple", "FORCE_COLOR": "1"}, True),
    ],
)
def test_colour_precedence_without_a_terminal(project, fdl, variables, coloured):
    project({"fdl.yml": MANIFEST})
    assert ("\x1b" in fdl("--help", env=variables).out) is coloured


def test_a_terminal_gets_colour_and_errors_a_red_label(project):
    folder = project({"fdl.yml": MANIFEST})
    with Terminal("--help", cwd=folder) as page:
        page.finish()
    assert "\x1b[1mUsage:" in page.text
    with Terminal("nope", cwd=folder) as refused:
        assert refused.finish() == 1
    assert "\x1b[1;31merror\x1b[0m: unknown command: nope" in refused.text


@pytest.mark.case("cli", 6)
def test_the_version_needs_no_manifest_and_heeds_no_environment(fdl):
    done = fdl("--version", env={"FDL_ENV": "nope"})
    assert (done.exit, done.out, done.err) == (0, f"flodl-cli {__version__}\n", "")


def test_version_is_ambiguous_beside_an_environment_of_that_name(project, fdl):
    project({"fdl.yml": "", "fdl.version.yaml": ""})
    done = fdl("version")
    assert (done.exit, done.out) == (1, "")
    assert done.err.startswith(
        "error: `version` is ambiguous: a built-in command and the environment of fdl.version.yaml"
    )
    assert fdl("--env", "version", "version").out == f"flodl-cli {__version__}\n"


@pytest.mark.parametrize("typed", [("-V",), ("version",), ("-v", "--version"), ("-q", "version")])
def test_other_ways_to_ask_for_the_version(fdl, typed):
    done = fdl(*typed)
    assert (done.exit, done.out) == (0, f"flodl-cli {__version__}\n")


def test_the_version_flag_counts_only_as_the_first_token(project, fdl):
    project(
        {"fdl.yml": "commands: {p: }", "p/fdl.yml": "entry: printf '%s\\n'", "p/x": ""},
    )
    assert fdl("p", "--version", "-V").out == "--version\n-V\n"


def test_version_is_hidden_from_help(fdl):
    assert "version  " not in fdl("--help").out.replace("--version  ", "")


def test_dry_run_and_json_belong_to_fdl_only_before_the_command(project, fdl):
    project({"fdl.yml": "commands: {p: }", "p/fdl.yml": "entry: printf '%s\\n'"})
    assert fdl("p", "--dry-run", "--json").out == "--dry-run\n--json\n"
    assert fdl("--dry-run", "p").out.startswith("command")
    assert fdl("-v", "--json", "--dry-run", "p").out.startswith("{")
    done = fdl("--json", "p")
    assert done.exit == 1
    assert "fdl --dry-run --json COMMAND" in done.err


def test_a_built_in_that_writes_shows_what_it_would_write(fdl, tmp_path):
    before = fdl("--dry-run", "init", "x", "--native")
    behind = fdl("init", "x", "--native", "-n")
    assert (before.exit, before.err) == (0, "")
    assert before.out == behind.out
    assert before.out.startswith("Would create x/ (no containers) with ")
    assert "  x/train/main.py\n" in before.out
    assert list(tmp_path.iterdir()) == []


def test_a_built_in_that_only_shows_has_no_dry_run(project, fdl):
    project({"fdl.yml": MANIFEST})
    done = fdl("-n", "config", "show")
    assert (done.exit, done.out) == (2, "")
    assert "`config show` has no dry run; leave `--dry-run` out" in done.err


def test_json_before_a_built_in_is_its_own(project, fdl):
    project({"fdl.yml": "commands: {t: {run: x}}"})
    assert fdl("--json", "list").out == fdl("list", "--json").out
    assert fdl("--json", "list").out.startswith("{")
    refused = fdl("--json", "completions")
    assert (refused.exit, refused.out) == (2, "")
    assert "`self completions` has no JSON to print" in refused.err
