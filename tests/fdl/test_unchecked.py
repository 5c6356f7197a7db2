"""Words after ``--``: fdl does not check them, and the program does not see the ``--``."""

import json

import pytest

# fdl reads two choices from the source, and refuses `slow`. The program accepts it.
PROGRAM = """
    import click

    @click.command()
    @click.option("--mode", type=click.Choice(["Fast", "Slow"]), default="Fast")
    @click.option("--lr", type=float, default=1.0)
    @click.argument("files", nargs=-1)
    def main(mode, lr, files):
        print(mode, lr, list(files))

    main()
"""
MANIFEST = "entry: python main.py\ncommands:\n  go: {options: {mode: Fast}}\n"


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (["--", "--mode", "Slow"], "Slow 1.0 []"),
        (["--lr", "2", "--", "--mode=Slow", "a"], "Slow 2.0 ['a']"),
        (["--", "--", "--mode", "Slow"], "Fast 1.0 ['--mode', 'Slow']"),
        (["a", "--", "--lr", "3", "--", "-b"], "Fast 3.0 ['a', '-b']"),
        (["--"], "Fast 1.0 []"),
        (["--", "--"], "Fast 1.0 []"),
    ],
)
def test_the_program_does_not_see_the_separator(project, light_fdl, words, out):
    project({"fdl.yml": MANIFEST, "main.py": PROGRAM})
    assert light_fdl("-q", "go", *words).out == f"{out}\n"


def test_words_behind_it_are_not_refused(project, light_fdl):
    project({"fdl.yml": MANIFEST, "main.py": PROGRAM})
    refused = light_fdl("-q", "go", "--mode", "slow")
    assert (refused.exit, refused.out) == (1, "")
    passed = light_fdl("-q", "go", "--", "--mode", "slow")
    assert "Invalid value for '--mode'" in passed.err  # click's own words
    assert passed.exit == 2


def test_dry_run_and_origins_show_the_words_without_it(project, fdl):
    project({"fdl.yml": MANIFEST, "main.py": PROGRAM})
    plan = json.loads(fdl("-n", "--json", "go", "--lr", "2", "--", "--mode", "Slow").out)
    assert plan["argv"][-6:] == ["--mode", "Fast", "--lr", "2", "--mode", "Slow"]
    assert (plan["typed"], plan["unchecked"]) == (4, 2)
    assert "Slow" in fdl("why", "mode", "go", "--", "--mode", "Slow").out


def test_options_for_ranks_behind_it_belong_to_the_program(project, fdl):
    project({"fdl.yml": "commands: {t: }", "t/fdl.yml": "entry: python main.py\n"})
    project({"t/main.py": "import sys; print(sys.argv[1:])\n"})
    assert fdl("-q", "t", "--", "--ranks", "2", "-x").out == "['--ranks', '2', '-x']\n"
