"""Pairs of trainings with a planted difference: does ``fdl runs diff`` name the cause?

Each pair is two real trainings of one project in a git repository. They differ in one thing, and
``fdl runs diff`` gets only the two run directories. A pair counts if the cause that it names
first is the planted one. A resumed training must be proved equal to one that was not interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Bar, command_line, judged, page, publish, read_options, table

SUBJECT = Path(__file__).with_name("run_diff_subject.py")
SEEDS = 3
LEAST = 30
"""Pairs that must be there."""


class Project:
    """A project whose trainings are compared.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "train").mkdir()
        (folder / "fdl.yml").write_text("commands: {train: }\n", encoding="utf-8")
        (folder / "train/fdl.yml").write_text("entry: python main.py\n", encoding="utf-8")
        self._program = folder / "train/main.py"
        shutil.copyfile(SUBJECT, self._program)
        self._run(sys.executable, "main.py", "--make-data", cwd=folder / "train")
        (folder / ".gitignore").write_text("runs\n", encoding="utf-8")
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        for words in (["init", "-q", "."], ["add", "-A"], ["commit", "-qm", "The program"]):
            self._run("git", *who, *words)

    def train(self, *words: str) -> Path:
        """Train; return the run directory."""
        output = self._folder / "runs" / str(len(list(self._folder.glob("runs/*"))))
        output.mkdir(parents=True)
        self._run(sys.executable, "-m", "fdl", "train", "--output", str(output), *words)
        (run,) = output.iterdir()
        return run

    def diff(self, left: Path, right: Path) -> dict[str, Any]:
        """Compare two runs."""
        words = [sys.executable, "-m", "fdl", "runs", "diff", str(left), str(right), "--json"]
        found: dict[str, Any] = json.loads(self._run(*words, codes=(0, 1)))
        return found

    @contextmanager
    def changed(self, name: str, change: Callable[[bytes], bytes]) -> Iterator[None]:
        """Change a file of the program while trainings run."""
        file = self._folder / "train" / name
        before = file.read_bytes()
        after = change(before)
        if after == before:
            raise ValueError(f"nothing was planted in {name}")
        file.write_bytes(after)
        try:
            yield
        finally:
            file.write_bytes(before)

    def _run(self, *command: str, cwd: Path | None = None, codes: Sequence[int] = (0,)) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command, cwd=cwd or self._folder, capture_output=True, text=True, check=False,
            env={**os.environ, "PATH": path, "CI": "1"},
        )  # fmt: skip
        if done.returncode not in codes:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout


Pair = tuple[Path, Path]
Plant = Callable[[Project, Path, tuple[str, ...]], Pair]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of planted difference.

    Attributes:
        plant: ``(project, run, words) -> two runs``; ``run`` was trained with ``words``.
        cause: Name of the cause that has to come first; empty if the runs must agree.
    """

    plant: Plant
    cause: str


def option(*words: str) -> Plant:
    """The second run gets further words."""
    return lambda project, base, common: (base, project.train(*common, *words))


def source(before: str, after: str) -> Plant:
    """The second run has another line of code."""

    def plant(project: Project, base: Path, common: tuple[str, ...]) -> Pair:
        old, new = before.encode(), after.encode()
        with project.changed("main.py", lambda text: text.replace(old, new)):
            return base, project.train(*common)

    return plant


def pixel(project: Project, base: Path, common: tuple[str, ...]) -> Pair:
    """One value of one image differs in one bit of its last byte."""
    at = 37 * 64 * 4 + 40  # image 37, pixel 10, lowest byte; the file is the images' bytes

    def change(data: bytes) -> bytes:
        return data[: at + 2] + bytes([data[at + 2] ^ 1]) + data[at + 3 :]

    with project.changed("images.bin", change):
        return base, project.train(*common)


def package(project: Project, base: Path, common: tuple[str, ...]) -> Pair:
    """As if a library had changed: other code, recorded as another version of torch."""
    _, other = source("SCALE = 1.0", "SCALE = 1.25")(project, base, common)
    shutil.copyfile(base / "code.diff", other / "code.diff")
    packages = (other / "packages.txt").read_text(encoding="utf-8")
    (other / "packages.txt").write_text(packages.replace("torch==2.", "torch==1."), "utf-8")
    return base, other


def resumed(project: Project, base: Path, common: tuple[str, ...]) -> Pair:
    """Four epochs at once, and two epochs after the checkpoint of two."""
    whole = project.train(*common, "--epochs", "4")
    return whole, project.train(*common, "--epochs", "4", "--resume", str(base))


def ranks(project: Project, _: Path, common: tuple[str, ...]) -> Pair:
    """Two ranks against three, which `fdl` starts."""
    two, three = (project.train(*common, "--ranks", str(count)) for count in (2, 3))
    return two, three


KINDS = {
    "seed": Kind(option("--seed", "99"), "seed"),
    "learning rate": Kind(option("--lr", "0.02"), "lr"),
    "one changed pixel": Kind(pixel, "the data"),
    "one reordered sample": Kind(option("--swap", "11"), "swap"),
    "order of dropout": Kind(source("DRAWS = 0", "DRAWS = 1"), "train/main.py"),
    "a changed line of code": Kind(source("SCALE = 1.0", "SCALE = 1.5"), "train/main.py"),
    "another package (faked)": Kind(package, "torch"),
    "threads": Kind(option("--threads", "2"), "threads"),
    "engine": Kind(option("--engine", "compiled"), "engine"),
    "accumulation": Kind(option("--accumulate", "2"), "accumulate"),
    "resumed against uninterrupted": Kind(resumed, ""),
    "two ranks against three": Kind(ranks, "world_size"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """What one comparison found.

    Attributes:
        where: What differs first, and at which step.
        cause: The cause that it names first, and whether no other is possible.
        right: Whether that is the planted one.
    """

    where: str
    cause: str
    right: bool


def judge(document: dict[str, Any], wanted: str) -> Found:
    """Judge a comparison.

    Args:
        document: What ``fdl runs diff --json`` printed.
        wanted: The name of the planted cause; empty if the runs must agree.
    """
    difference = document["difference"]
    if difference is None:
        steps = document["steps"]
        where = f"equal in steps {steps['first']} to {steps['last']}"
        return Found(where, "none", not wanted)
    likely = [one for one in document["causes"] if one["likely"]]
    first = likely[0]["name"] if likely else "none"
    sure = "" if document["certain"] else ", among others"
    where = f"{difference['what']}, step {difference['step']}"
    if difference["what"] == "data content":
        where += f": {difference['detail'].partition(',')[0]}"
    return Found(where, first + sure, first.rpartition(" ")[2] == wanted.rpartition(" ")[2])


def main(argv: Sequence[str] | None = None) -> None:
    """Train the pairs and publish."""
    parser = command_line("run_diff", __doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="pairs of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    options = read_options(
        parser, argv, seeds=1, kinds=["learning rate", "one changed pixel", "order of dropout"]
    )
    found: dict[str, list[Found]] = {name: [] for name in options.kinds}
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        for seed in range(1, options.seeds + 1):
            common = ("--seed", str(seed))
            base = project.train(*common)
            for name in options.kinds:
                kind = KINDS[name]
                pair = kind.plant(project, base, common)
                found[name].append(judge(project.diff(*pair), kind.cause))
    rows = [
        [
            name,
            "; ".join(dict.fromkeys(one.where for one in all_)),
            "; ".join(dict.fromkeys(one.cause for one in all_)),
            f"{sum(one.right for one in all_)} of {len(all_)}",
            judged(all(one.right for one in all_)),
        ]
        for name, all_ in found.items()
    ]
    pairs = [one for all_ in found.values() for one in all_]
    right = sum(one.right for one in pairs)
    bar = Bar(max(LEAST, len(pairs)), least=True, form=".0f")
    text = page(
        options,
        "Causes that `fdl runs diff` finds",
        f"{len(pairs)} pairs of real trainings on the CPU, one planted difference each.",
        table(["planted", "first difference", "cause named first", "found", "bar"], rows),
        f"Found in {right} of {len(pairs)} pairs: {bar.verdict(right)}.",
        "The package is faked: the second run has other code, and its record says that torch has "
        "another version. Everything else is a real difference.",
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
