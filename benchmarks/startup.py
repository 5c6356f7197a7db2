"""How long a task runner takes before the task: fdl beside poe, invoke, nox and just.

Every tool runs the same command, ``true``, from the same folder. Unit of comparison is
``python -c pass`` in the same interpreter, timed in the same rounds.

    python -m benchmarks.startup [--rounds 40] [--output docs/benchmarks/startup.md]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import environment, interleaved, median_ratio, publish, table

BASE = "python -c pass"

PROJECT = {
    "fdl.yml": "commands:\n  hello:\n    run: 'true'\n",
    "pyproject.toml": '[tool.poe.tasks]\nhello = "true"\n',
    "tasks.py": "from invoke import task\n\n@task\ndef hello(c):\n    c.run('true')\n",
    "noxfile.py": (
        "import nox\n\n@nox.session(venv_backend='none')\ndef hello(session):\n"
        "    session.run('true', external=True)\n"
    ),
    "justfile": "hello:\n    @true\n",
}


def commands(bin_dir: Path) -> dict[str, list[str]]:
    """Row name -> argv; tools that are not installed are left out."""
    python = sys.executable
    rows = {
        BASE: [python, "-c", "pass"],
        "fdl --version": [str(bin_dir / "fdl"), "--version"],
        "fdl hello": [str(bin_dir / "fdl"), "hello"],
        "python -m fdl --version": [python, "-m", "fdl", "--version"],
        "python -m fdl hello": [python, "-m", "fdl", "hello"],
        "fdl --help": [str(bin_dir / "fdl"), "--help"],
        "fdl config show": [str(bin_dir / "fdl"), "config", "show"],
        "poe hello": [str(bin_dir / "poe"), "-q", "hello"],
        "invoke hello": [str(bin_dir / "invoke"), "hello"],
        "nox -s hello": [str(bin_dir / "nox"), "-s", "hello"],
        "just hello": [str(bin_dir / "just"), "hello"],
    }
    return {name: argv for name, argv in rows.items() if shutil.which(argv[0])}


def runner(argv: list[str], folder: Path) -> Callable[[], object]:
    """One timed call; a command that fails would make the figure worthless, so it stops the run."""
    # Byte code is cached wherever a user runs this; an environment that forbids it measures the
    # compiler instead.
    dropped = ("PYTHONDONTWRITEBYTECODE", "FDL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in dropped}

    def call() -> None:
        subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True)

    return call


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, text in PROJECT.items():
            (folder / name).write_text(text, encoding="utf-8")
        argvs = commands(Path(sys.executable).parent)
        subjects = {name: runner(argv, folder) for name, argv in argvs.items()}
        seconds = interleaved(subjects, options.rounds)

    rows = [
        [f"`{name}`", f"{statistics.median(times) * 1e3:.1f}", f"{ratio:.2f}×"]
        for name, times in seconds.items()
        for ratio in [median_ratio(times, seconds[BASE])]
    ]
    page = "\n\n".join(
        [
            "# Start-up",
            f"{environment('flodl', 'poethepoet', 'invoke', 'nox', 'rust-just')}; "
            f"{options.rounds} interleaved rounds, medians. The task is `true`; the manifest is "
            "unchanged since the call before, so `fdl` reads its cache.",
            table(["command", "ms", "of `python -c pass`"], rows),
            "`fdl` starts through the launcher that pip writes; older versions of pip (before 25) "
            "import `re` in it, which the rows `python -m fdl` do without.",
        ]
    )
    publish(page, options.output)


if __name__ == "__main__":
    main()
