"""One small project in six tools: just, poe, Task, DVC, Hydra and fdl.

The project prepares data, trains, evaluates, lints, tests and sweeps. Its scripts are the same for
every tool, except for Hydra, whose program must be written for it. The page shows the lines that
each tool needs, what it can do, and how long it takes. Every command in the table of abilities is
run, and a yes or a no counts only if its output shows it.

    python -m venv tools && tools/bin/pip install dvc go-task-bin hydra-core poethepoet rust-just
    python -m benchmarks.side_by_side --tools tools/bin --output docs/benchmarks/side_by_side.md
"""

from __future__ import annotations

import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import (
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

PROJECTS = Path(__file__).parent / "runners"
TOOLS = ("just", "poe", "task", "dvc", "hydra", "fdl")
ROWS = 200

QUESTIONS: dict[str, dict[str, str]] = {
    "list the commands": {
        "just": "just --list",
        "poe": "poe --help",
        "task": "task --list-all",
        "dvc": "dvc stage list",
        "hydra": "python train_hydra.py --help",
        "fdl": "fdl --help",
    },
    "run `lint`": {
        "just": "just lint",
        "poe": "poe -q lint",
        "task": "task -s lint",
        "dvc": "dvc repro -q -s lint",
        "fdl": "fdl lint",
    },
    "run `evaluate` again, nothing changed": {
        "just": "just evaluate",
        "poe": "poe -q evaluate",
        "task": "task -s evaluate",
        "dvc": "dvc repro -q evaluate",
        "hydra": "python train_hydra.py",
        "fdl": "fdl -q evaluate",
    },
}
"""What is timed -> tool -> what is typed. Hydra has no commands, so its program stands for them."""


GROUP = "mkdir -p {0}/speed; printf '# @package _global_\\nnum_epochs: 9\\n' > {0}/speed/slow.yaml"
"""Makes the group `speed` of a configuration, with the choice `slow`."""


class Check(NamedTuple):
    """A command that shows whether a tool has an ability, and the words of its output that do.

    Attributes:
        command: What is typed.
        shows: The words.
        answer: What they show.
    """

    command: str
    shows: str
    answer: str = "yes"


def no(command: str, shows: str) -> Check:
    """The nearest that one can type where a tool lacks an ability, and what comes of it."""
    return Check(command, shows, "no")


ABILITIES: dict[str, dict[str, Check]] = {
    "run what a command needs first": {
        "just": Check("rm -rf .justcache; just evaluate", "worst"),
        "poe": Check("poe evaluate", "worst"),
        "task": Check("touch raw.csv; task --force evaluate", "worst"),
        "dvc": Check("dvc repro --force evaluate", "worst"),
        "hydra": no("python train_hydra.py prepare", "Error parsing override 'prepare'"),
        "fdl": Check("fdl --force evaluate", "worst"),
    },
    "skip what has not changed, by content": {
        "just": Check("touch raw.csv; just -v evaluate", "cache hit, skipping invocation"),
        "poe": no("touch raw.csv; poe evaluate", "Poe => python prepare.py"),
        "task": Check("touch raw.csv; task evaluate", 'Task "prepare" is up to date'),
        "dvc": Check("touch raw.csv; dvc repro evaluate", "didn't change, skipping"),
        "hydra": no("python train_hydra.py; python train_hydra.py", "loss"),
        "fdl": Check("touch raw.csv; fdl evaluate", "skipped"),
    },
    "say which file makes a command run": {
        "just": no("echo 1,3 >> raw.csv; just -v evaluate", "running recipe `prepare`..."),
        "poe": no("echo 1,3 >> raw.csv; poe -v evaluate", "Poe => python prepare.py"),
        "task": no("echo 1,3 >> raw.csv; task -v evaluate", '"prepare" started'),
        "dvc": Check("echo 1,3 >> raw.csv; dvc status", "raw.csv"),
        "hydra": no("echo 1,3 >> raw.csv; python train_hydra.py", "loss"),
        "fdl": Check("echo 1,3 >> raw.csv; fdl why --run evaluate", "raw.csv"),
    },
    "run commands in parallel": {
        "just": Check("printf '[parallel]\\nboth: lint test\\n' >> justfile; just both", "OK"),
        "poe": Check("poe checks", "OK"),
        "task": Check("task --parallel lint test", "OK"),
        "dvc": no("dvc repro --jobs 2 lint test", "unrecognized arguments"),
        "hydra": no(
            "python train_hydra.py -m hydra/launcher=joblib seed=1,2",
            "Could not find 'hydra/launcher/joblib'",
        ),
        "fdl": Check("fdl --jobs 2 lint test", "OK"),
    },
    "show what would run": {
        "just": Check("just --dry-run train", "--num_epochs 5"),
        "poe": Check("poe --dry-run train", "--num_epochs"),
        "task": Check("task --force --dry train", "--num_epochs 5"),
        "dvc": Check("dvc repro --force --dry train", "--num_epochs 5"),
        "hydra": Check("python train_hydra.py --cfg job", "num_epochs: 5"),
        "fdl": Check("fdl --dry-run train", "--num_epochs 5"),
    },
    "change one option from the command line": {
        "just": Check("just --dry-run num_epochs=9 train", "--num_epochs 9"),
        "poe": Check("poe train --num_epochs 9", "--num_epochs"),
        "task": Check("task --force --dry train num_epochs=9", "--num_epochs 9"),
        "dvc": Check("dvc exp run -f --dry -S num_epochs=9 train", "--num_epochs 9"),
        "hydra": Check("python train_hydra.py --cfg job num_epochs=9", "num_epochs: 9"),
        "fdl": Check("fdl --dry-run train --num_epochs 9", "--num_epochs 9"),
    },
    "refuse a misspelt option before the program starts, with a suggestion": {
        "just": no("just num_epohcs=9 train", "overridden on the command line but not present"),
        "poe": no("poe train --num_epohcs 9", "unrecognized arguments: --num_epohcs 9"),
        "task": no("task --force --dry train num_epohcs=9", "--num_epochs 5"),
        "dvc": no("dvc exp run -f --dry -S num_epohcs=9 train", "To append to your config use"),
        "hydra": no("python train_hydra.py num_epohcs=9", "To append to your config use"),
        "fdl": Check("fdl train --num_epohcs 9", "did you mean `--num_epochs`?"),
    },
    "list the options of the unchanged script, with defaults": {
        "just": no("just --usage train", "Usage: just train"),
        "poe": no("mv pyproject.toml x; poe --help train; mv x pyproject.toml", "no pyproject"),
        "task": no("task --summary train", 'learning_rate: "0.01"'),
        "dvc": no("dvc params diff --all", "learning_rate"),
        "hydra": no("python train.py --cfg job", "unrecognized arguments: --cfg job"),
        "fdl": Check("fdl train --help all", "--learning_rate FLOAT"),
    },
    "tell file and line of a setting": {
        "just": no("just --evaluate num_epochs", "5"),
        "poe": no("poe --dry-run -v train", "--num_epochs 5"),
        "task": no("task --summary train", 'num_epochs: "5"'),
        "dvc": no("dvc params diff --all", "params.yaml  num_epochs"),
        "hydra": no("python train_hydra.py --info defaults", "Config path"),
        "fdl": Check("fdl why num_epochs train", "fdl.yml:"),
    },
    "sweep over a grid": {
        "just": no("just num_epochs=1,2 train", "invalid int value: '1,2'"),
        "poe": no("poe train --num_epochs 1,2", "invalid int value: '1,2'"),
        "task": Check("task --force sweep", "sweep/lr=0.01,seed=2"),
        "dvc": Check(
            "dvc exp run --queue -S learning_rate=0.001,0.01 -S seed=1,2; dvc queue status",
            "Queued",
        ),
        "hydra": Check("python train_hydra.py -m learning_rate=0.001,0.01 seed=1,2", "#3"),
        "fdl": Check("fdl sweep run grid", "4 of 4 runs done"),
    },
    "keep versions of data in a remote store": {
        "just": no("just push", "justfile does not contain recipe `push`"),
        "poe": no("poe push", "Unrecognized task 'push'"),
        "task": no("task push", 'Task "push" does not exist'),
        "dvc": Check("dvc remote add -d store ../store; dvc push", "pushed"),
        "hydra": no("python train_hydra.py push", "Error parsing override 'push'"),
        "fdl": no("fdl push", "unknown command: push"),
    },
    "compose configurations from groups": {
        "just": no("just speed=slow train", "overridden on the command line but not present"),
        "poe": no("poe train --speed slow", "unrecognized arguments: --speed slow"),
        "task": no("task --force --dry train speed=slow", "--num_epochs 5"),
        "dvc": Check(
            f"{GROUP.format('conf')}; cp params.yaml conf/config.yaml; "
            "echo 'defaults: [_self_, speed: slow]' >> conf/config.yaml; "
            "dvc config hydra.enabled True; dvc exp run -f --dry -S seed=3 train",
            "--num_epochs 9 --seed 3",
        ),
        "hydra": Check(
            f"{GROUP.format('.')}; python train_hydra.py --cfg job +speed=slow", "num_epochs: 9"
        ),
        "fdl": no("fdl train --speed slow", "unknown option: --speed"),
    },
}
"""Ability -> tool -> how it is shown that the tool has it, or what was tried where it has not."""


def lines(tool: str) -> int:
    """The lines that a user writes for a tool: no blank lines, no comments.

    A program that must be changed counts with the lines that are new in it.
    """
    written = 0
    for file in sorted((PROJECTS / tool).rglob("*")):
        own = file.read_text(encoding="utf-8").splitlines()
        if file.suffix == ".py":
            common = (PROJECTS / "common/train.py").read_text(encoding="utf-8").splitlines()
            changes = difflib.unified_diff(common, own, n=0, lineterm="")
            own = [one[1:] for one in changes if one[:1] == "+" and one[:3] != "+++"]
        written += sum(1 for one in own if one.strip() and not one.lstrip().startswith("#"))
    return written


def place(tool: str, folder: Path, call: Callable[[str, Path], str]) -> Path:
    """A copy of the project for one tool, with everything run once."""
    target = folder / tool
    shutil.copytree(PROJECTS / "common", target)
    shutil.copytree(PROJECTS / tool, target, dirs_exist_ok=True)
    chance = random.Random(1)
    points = [(chance.random(), chance.gauss(0, 0.05)) for _ in range(ROWS)]
    text = "".join(f"{x:.4f},{2 * x + 1 + noise:.4f}\n" for x, noise in points)
    (target / "raw.csv").write_text(text, encoding="utf-8")
    if tool == "dvc":
        call("git init -q . && dvc init -q && git add -A && git commit -qm start", target)
    if tool == "hydra":
        call("python prepare.py", target)
    call(QUESTIONS["run `evaluate` again, nothing changed"][tool], target)
    if tool == "dvc":
        call("git add -A && git commit -qm trained", target)
    return target


def caller(tools: Path) -> Callable[[str, Path], str]:
    """What runs a shell line in a folder and returns both of its streams."""
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    identity = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER")
                for what in ("NAME", "EMAIL")}  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if name != "FDL_ENV"}
    env = {**kept, **identity, "PATH": path, "DVC_NO_ANALYTICS": "1", "CI": "1"}

    def call(line: str, folder: Path) -> str:
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    return call


def timed(line: str, folder: Path, call: Callable[[str, Path], str]) -> Callable[[], object]:
    """One call to time."""
    return lambda: call(f"exec {line}", folder)


def abilities(folders: Mapping[str, Path], call: Callable[[str, Path], str]) -> list[list[str]]:
    """The table of abilities. A command whose output does not show what it should is marked."""
    rows = []
    for ability, tools in ABILITIES.items():
        row = [ability]
        for tool in TOOLS:
            check = tools[tool]
            shown = check.shows in call(check.command, folders[tool])
            row.append(check.answer if shown else f"FAILED: `{check.command}`")
        rows.append(row)
    return rows


def attempts() -> list[list[str]]:
    """What was tried for each `no`."""
    return [
        [ability, tool, f"`{check.command}`", f"`` {check.shows} ``"]
        for ability, tools in ABILITIES.items()
        for tool, check in tools.items()
        if check.answer == "no"
    ]


def times(
    folders: Mapping[str, Path], call: Callable[[str, Path], str], rounds: int
) -> list[list[str]]:
    """The table of times: milliseconds, and the ratio to fdl with its spread."""
    rows = []
    for question, tools in QUESTIONS.items():
        subjects = {tool: timed(line, folders[tool], call) for tool, line in tools.items()}
        seconds = interleaved(subjects, rounds)
        for tool, line in tools.items():
            own, base = seconds[tool], seconds["fdl"]
            ratio = f"{median_ratio(own, base):.2f} ({spread(ratios(own, base))})"
            rows.append([question, f"`{line}`", middle(own, ".0f", 1e3), ratio])
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("side_by_side", __doc__, rounds=15)
    parser.add_argument("--tools", type=Path, required=True, help="folder of the other tools")
    options = read_options(parser, argv, rounds=1)
    # The interpreter with Hydra runs every program, so that all of them start alike.
    call = caller(options.tools.resolve())
    with tempfile.TemporaryDirectory() as folder:
        folders = {tool: place(tool, Path(folder), call) for tool in TOOLS}
        measured = times(folders, call, options.rounds)
        shown = abilities(folders, call)
        versions = call(
            "pip list --format freeze 2>/dev/null"
            " | grep -E '^(dvc|go-task-bin|hydra-core|poethepoet|rust-just)=='",
            Path(folder),
        )
    written = [[f"lines written for {tool}", str(lines(tool))] for tool in TOOLS]
    text = page(
        options,
        "One project in six tools",
        f"{', '.join(versions.split())}; {options.rounds} interleaved "
        "rounds, medians, and the ratio to fdl with the range of the middle 80 %. "
        "The files of all six are in `benchmarks/runners`.",
        "The project prepares data, trains, evaluates, lints, tests and sweeps. Five tools run "
        "the same scripts. Hydra needs a program that is written for it: its lines count what "
        "differs from the plain script. Hydra has no commands, so `prepare`, `evaluate`, "
        "`lint` and `test` are not among its lines. DVC's sweep is a command line, not a file.",
        table(["", "lines"], written),
        "## What they can do",
        "A command was run for each `yes` and each `no`, with the versions above. `no` means that "
        "the nearest command does something else. A script or a plugin may add the ability. DVC "
        "runs queued experiments in parallel, and no stages; Hydra runs jobs in parallel with "
        "plugins such as `hydra-joblib-launcher`.",
        table(["", *TOOLS], shown),
        "## What was tried for each no",
        table(["", "tool", "typed", "and its output has"], attempts()),
        "## Time",
        table(["", "command", "ms", "of fdl"], measured),
        "`just` is a compiled program and starts faster than any Python program. Its cache, since "
        "1.54, is an unstable feature, which the file turns on; it takes files, and no folders or "
        "patterns. `poe` runs everything again, because it does not look at files. Hydra's row "
        "of `evaluate` is one more training.",
        packages=("flodl",),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
