"""How long a task runner takes before the task: fdl beside poe, invoke, nox and just.

Every tool has the same 200 commands, runs the same one, ``true``, and answers the same questions
from the same folder; fdl's manifest has three overlays and the calls are made under the strongest
of them. Unit of comparison is ``python -c pass`` in the same interpreter, timed in the same rounds.

    python -m benchmarks.startup [--rounds 40] [--output docs/benchmarks/startup.md]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import (
    Bar,
    command_line,
    interleaved,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)

BASE = "python -c pass"

COMMANDS = 200


def project() -> dict[str, str]:
    """The same commands for every tool: file name -> text."""
    names = [f"task{number}" for number in range(COMMANDS - 1)]
    return {
        "fdl.yml": "commands:\n  hello:\n    run: 'true'\n"
        + "".join(
            f"  {name}:\n    description: Do what {name} is for\n    run: echo {name}\n"
            for name in names
        ),
        # Three layers over the manifest: an overlay and what it inherits from.
        "fdl.ci.yml": "inherit-from: cloud.yml\ncommands:\n  task1:\n    run: echo ci\n",
        "cloud.yml": "inherit-from: shared.yml\ncommands:\n  task2:\n    run: echo cloud\n",
        "shared.yml": "commands:\n  task3:\n    run: echo shared\n",
        "pyproject.toml": '[tool.poe.tasks]\nhello = "true"\n'
        + "".join(
            f'{name} = {{cmd = "echo {name}", help = "Do what {name} is for"}}\n' for name in names
        ),
        "tasks.py": "from invoke import task\n\n@task\ndef hello(c):\n    c.run('true')\n"
        + "".join(
            f'\n@task\ndef {name}(c):\n    """Do what {name} is for."""\n    c.run("echo {name}")\n'
            for name in names
        ),
        "noxfile.py": "import nox\n\n@nox.session(venv_backend='none')\ndef hello(session):\n"
        "    session.run('true', external=True)\n"
        + "".join(
            f"\n@nox.session(venv_backend='none')\ndef {name}(session):\n"
            f'    """Do what {name} is for."""\n    session.run("echo", "{name}", external=True)\n'
            for name in names
        ),
        "justfile": "hello:\n    @true\n"
        + "".join(f"\n# Do what {name} is for\n{name}:\n    @echo {name}\n" for name in names),
    }


# Question -> tool -> arguments; None where the tool cannot answer it.
QUESTIONS: dict[str, dict[str, list[str] | None]] = {
    "run a command": {
        "fdl": ["--env", "ci", "hello"],
        "poe": ["-q", "hello"],
        "invoke": ["hello"],
        "nox": ["-s", "hello"],
        "just": ["hello"],
    },
    "version": {tool: ["--version"] for tool in ("fdl", "poe", "invoke", "nox", "just")},
    "complete a word": {
        "fdl": ["__complete", "bash", "--", "--env", "ci", "task1"],
        "poe": ["_list_tasks"],
        "invoke": ["--complete", "--", "task1"],
        "nox": None,
        "just": ["--summary"],
    },
    "list the commands": {
        "fdl": ["--env", "ci", "--help"],
        "poe": ["--help"],
        "invoke": ["--list"],
        "nox": ["--list"],
        "just": ["--list"],
    },
    "show the configuration": {
        "fdl": ["--env", "ci", "config", "show"],
        "poe": None,
        "invoke": None,
        "nox": None,
        "just": ["--dump"],
    },
    "other built-in commands": {"fdl": ["runs", "list"]},
}

BARS = {
    "run a command: fdl": Bar(2.0),
    "version: fdl": Bar(1.5),
    "complete a word: fdl": Bar(2.5),
    "list the commands: fdl": Bar(4.0),
    "show the configuration: fdl": Bar(12.0),
    "other built-in commands: fdl": Bar(12.0),
}
"""The most that a command may take, in times of ``python -c pass``."""

CHANGED = ", manifest changed"
"""Ends the questions that fdl is asked without its cache, as after every edit."""


def commands(bin_dir: Path) -> dict[str, list[str]]:
    """``question: tool`` -> argv; tools that are not installed are left out."""
    rows = {BASE: [sys.executable, "-c", "pass"]}
    for question, tools in QUESTIONS.items():
        for tool, arguments in tools.items():
            if arguments is not None:
                rows[f"{question}: {tool}"] = [str(bin_dir / tool), *arguments]
    rows["run a command: python -m fdl"] = [sys.executable, "-m", "fdl", "--env", "ci", "hello"]
    for question in ("run a command", "complete a word", "show the configuration"):
        rows[f"{question}{CHANGED}: fdl"] = rows[f"{question}: fdl"]
    return {name: argv for name, argv in rows.items() if shutil.which(argv[0])}


def runner(argv: list[str], folder: Path, *, cold: bool) -> Callable[[], object]:
    """One timed call; a command that fails would make the figure worthless, so it stops the run.

    Args:
        argv: What to call.
        folder: Where.
        cold: Whether what fdl has kept from the call before is taken away first.
    """
    env = {name: value for name, value in os.environ.items() if name != "FDL_ENV"}

    def call() -> None:
        if cold:
            (folder / ".fdl/manifest.ci.json").unlink(missing_ok=True)
        subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True)

    return call


def described(name: str, argv: list[str]) -> tuple[str, str]:
    """The first two cells of a row: what is asked, and what is typed."""
    question, _, _ = name.partition(": ")
    if name == BASE:
        return "", f"`{name}`"
    return question, f"`{Path(argv[0]).name} {' '.join(argv[1:])}`"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("startup", __doc__, rounds=40)
    options = read_options(parser, argv, rounds=1)
    with tempfile.TemporaryDirectory() as warm, tempfile.TemporaryDirectory() as cold:
        for folder in (warm, cold):
            for name, text in project().items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
        argvs = commands(Path(sys.executable).parent)
        subjects = {
            name: runner(argv, Path(cold), cold=True)
            if CHANGED in name
            else runner(argv, Path(warm), cold=False)
            for name, argv in argvs.items()
        }
        # A cache is not written from a file of this very moment, so one run comes after it.
        time.sleep(0.1)
        subjects["run a command: fdl"]()
        # The manifest without its overlays has a cache of its own.
        runner([argvs["run a command: fdl"][0], "hello"], Path(warm), cold=False)()
        seconds = interleaved(subjects, options.rounds, warmup=0 if options.quick else 2)

    rows = [
        [
            *described(name, argvs[name]),
            middle(times, scale=1e3),
            f"{ratio:.2f}×",
            spread(ratios(times, seconds[BASE])),
            BARS[name].verdict(ratio) if name in BARS else "",
        ]
        for name, times in seconds.items()
        for ratio in [median_ratio(times, seconds[BASE])]
    ]
    text = page(
        options,
        "Start-up",
        f"{options.rounds} interleaved rounds, medians and the middle 80 %. Every tool has "
        f"{COMMANDS} commands; the task is `true`. fdl reads a manifest with three layers over it. "
        "It reads its cache, except in the rows that say *manifest changed*.",
        table(["question", "command", "ms", "of `python -c pass`", "spread", "bar"], rows),
        "`nox` completes through argcomplete inside the shell's own function. Only `just` "
        "can also print its configuration. A tool without an answer has no row. "
        "`fdl` starts through the launcher that pip writes. pip before 25 imports `re` in it, "
        "which costs another third of an interpreter's start. "
        "Since 28 November 2026, pydantic checks a manifest that is not read from the cache. "
        "Its import and its models take about 100 ms.",
        packages=("flodl", "typer", "poethepoet", "invoke", "nox", "rust-just"),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
