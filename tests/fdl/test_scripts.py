"""Scripts under ``run``: a failing line ends them, and ``#!`` names the program that runs them."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import wait_for

LINT = """
    commands:
      lint:
        run: |
          false  # stands for: ruff check .
          echo mypy ok
"""


def test_a_script_ends_at_the_first_line_that_fails(project, fdl):
    project({"fdl.yml": LINT})
    done = fdl("lint")
    assert (done.exit, done.out) == (1, "")


def test_with_errexit_off_a_script_goes_on_as_in_a_plain_shell(project, fdl):
    project({"fdl.yml": LINT + "        errexit: false\n"})
    done = fdl("lint")
    assert (done.exit, done.out) == (0, "mypy ok\n")


@pytest.mark.parametrize(
    ("run", "exit_code", "out"),
    [
        ("'false; echo on'", 0, "on\n"),
        ("|\n  # the one command of this script\n\n  false; echo on\n", 0, "on\n"),
        (">\n  false;\n  echo on\n", 0, "on\n"),
        ("|\n  false || echo caught\n  echo on\n", 0, "caught\non\n"),
        ("|\n  if false; then echo no; fi\n  echo on\n", 0, "on\n"),
        ("|\n  echo on\n  exit 3\n  echo no\n", 3, "on\n"),
        ("|\n  (exit 4)\n  echo no\n", 4, ""),
        ("|\n  value=$(exit 5)\n  echo no\n", 5, ""),
        ("|\n  no-such-program-anywhere\n  echo no\n", 127, ""),
        ("|\n  echo on\n  echo last", 0, "on\nlast -x\n"),
    ],
)
def test_only_several_command_lines_stop_at_a_failure(project, fdl, run, exit_code, out):
    project({"fdl.yml": "commands:\n  c:\n    " + f"run: {run}\n".replace("\n", "\n    ")})
    done = fdl("c", *(["--", "-x"] if "-x" in out else []))
    assert (done.exit, done.out) == (exit_code, out)


def test_errexit_stands_beside_run_only(project, fdl):
    project({"fdl.yml": "entry: echo\ncommands:\n  p: {errexit: false, training: {lr: 1}}\n"})
    done = fdl("p")
    assert done.exit == 1
    assert "fdl.yml:3:16: command `fdl p`: `errexit` needs `run` beside it" in done.err


def test_the_plan_shows_that_a_failure_ends_the_script(project, fdl):
    project({"fdl.yml": LINT})
    argv = json.loads(fdl("-n", "--json", "lint").out)["argv"]
    assert argv == ["sh", "-e", "-c", "false  # stands for: ruff check .\necho mypy ok\n"]


REPORT = """
    commands:
      report:
        run: |
          #!/usr/bin/env python3
          import sys
          values = [1, 2]
          print("mean", sum(values) / len(values), *sys.argv[1:])
          print("it's $HOME, `not` expanded \\\\n")
          sys.exit(7)
"""


def test_a_script_that_begins_with_an_interpreter_is_run_by_it(project, fdl):
    project({"fdl.yml": REPORT})
    done = fdl("report", "--", "-x", "two words")
    assert done.out == "mean 1.5 -x two words\nit's $HOME, `not` expanded \\n\n"
    assert done.exit == 7


@pytest.mark.parametrize(
    ("script", "out"),
    [
        ("#!/usr/bin/env bash\nset -euo pipefail\na=(fine)\necho ${a[0]}\n", "fine\n"),
        ("#!/bin/sh\nfalse\necho on\n", "on\n"),
        ("#! /bin/sh -e\nfalse\necho on\n", ""),
        ("#!/usr/bin/env -S python3 -I\nimport sys\nprint(sys.flags.isolated)", "1\n"),
        ("#!/bin/cat\nFDL_SCRIPT\n$(false)\n", "#!/bin/cat\nFDL_SCRIPT\n$(false)\n"),
        ("#!/bin/sh\nread line\necho got $line\n", "got typed\n"),
    ],
)
def test_the_first_line_names_interpreter_and_options_as_for_a_file(project, fdl, script, out):
    project({"fdl.yml": json.dumps({"commands": {"c": {"run": script}}})})
    assert fdl("c", stdin="typed\n").out == out


def test_declared_and_fixed_arguments_reach_the_interpreter(project, fdl):
    project(
        {
            "fdl.yml": """
                commands:
                  c:
                    run: |
                      #!/usr/bin/env python3
                      import os, sys
                      print(os.environ["n"], sys.argv[1:])
                    append: -z 'a b'
                    args:
                      n: 2
                      where: {positional: true}
            """
        }
    )
    assert fdl("c", "it's", "--n", "3", "--", "-x").out == "3 [\"it's\", '-z', 'a b', '-x']\n"


def test_the_error_of_a_script_names_it_and_nothing_is_left(project, fdl, tmp_path):
    project({"fdl.yml": 'commands: {bad: {run: "#!/usr/bin/env python3\\n1 / 0\\n"}}'})
    here = tmp_path / "temporary"
    here.mkdir()
    done = fdl("bad", env={"TMPDIR": str(here)})
    assert '/bad", line 2' in done.err
    assert "ZeroDivisionError" in done.err
    assert done.exit == 1
    assert not list(here.iterdir())


def test_the_interpreter_gets_the_signal_and_the_script_is_removed(project, tmp_path):
    """A stop signal reaches the program. Its file stays until it has ended."""
    project(
        {
            "fdl.yml": """
                commands:
                  wait:
                    run: |
                      #!/usr/bin/env python3
                      import pathlib, signal, sys
                      def stop(number, frame):
                          print("saved", pathlib.Path(__file__).exists(), flush=True)
                          sys.exit(5)
                      signal.signal(signal.SIGTERM, stop)
                      pathlib.Path("ready").touch()
                      signal.pause()
            """
        }
    )
    here = tmp_path / "temporary"
    here.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-m", "fdl", "wait"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(here), "CI": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for((tmp_path / "ready").exists)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=60)
    assert (out, child.returncode) == ("saved True\n", 5)
    assert not list(here.iterdir())
