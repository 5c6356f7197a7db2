"""The guides of docs/guide, typed from top to bottom: every file written, every command run.

A fenced block whose info string has a second word is a file of that name. A ``console`` block is a
terminal: lines that begin with ``$ `` are typed, the lines below are what appears. A line of
``...`` stands for any lines, at the end of a line for its rest. ``console no-run`` is for what a
test cannot type, ``console with-PROGRAM`` for what needs a program that may be missing.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdl.cli.builtin_table import TABLE
from tests import fork_server
from tests.fdl.batch.stand_in import installed
from tests.rows import each_row
from tests.typed import note

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = sorted(path for path in (DOCS / "guide").glob("*.md") if path.name != "README.md")
FIRST = DOCS / "get-started.md"
SLOW = (
    "adopt.md", "clusters.md", "cpp-and-rust.md", "elastic.md", "libtorch.md", "manifest.md",
    "runs.md", "runs-more.md", "sweeps.md", "tokenizers.md", "trackers.md", "trained-model.md",
)  # fmt: skip
"""They compile a program, install libtorch, import torch or MLflow, or run many commands."""
BLOCK = re.compile(r"^```(\w+)(?: +(\S+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)\)")


READER = {"CI": "1", "COLUMNS": "100", "FDL_SCHEMA_SECONDS": "120"}
"""The terminal of a reader who runs nothing else meanwhile: importing torch may take long here."""


def typed(line: str, folder: Path, machine: Mapping[str, str] = os.environ) -> str:
    """What appears in a terminal: both streams in the order of writing.

    A ``cd`` holds for the lines that follow.
    """
    foreign = ("FDL_", "FLODL_", "NO_COLOR", "FORCE_COLOR", "OMP_WAIT_POLICY")
    env = {name: value for name, value in machine.items() if not name.startswith(foreign)}
    path = fork_server.fdl_on_path(env)
    # What a reader installs for themselves goes below their home.
    home = folder.with_name(f"{folder.name}-home")
    # pip knows where packages come from here, also for a reader with another home.
    config = Path(pwd.getpwuid(os.getuid()).pw_dir, ".config/pip/pip.conf")
    pip = {"PIP_CONFIG_FILE": str(config)} if config.exists() else {}
    place = folder.with_name(f"{folder.name}-place")
    done = subprocess.run(
        ["bash", "-c", f"{line}\npwd >{shlex.quote(str(place))}"],
        cwd=place.read_text().rstrip("\n") if place.exists() else folder,
        env={**env, **READER, **pip, "HOME": str(home), "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    note(line, folder, {**os.environ, **READER}, lambda: (done.returncode, done.stdout))
    return done.stdout.replace(str(home), "/home/me").replace(str(folder), "/home/me/project")


def fits(promised: list[str], seen: list[str]) -> bool:
    """Whether the lines are the promised ones; ``...`` swallows any number of them."""
    if not promised:
        return not seen
    if promised[0].strip() == "...":
        return any(fits(promised[1:], seen[skip:]) for skip in range(len(seen) + 1))
    return bool(seen) and _alike(promised[0].rstrip(), seen[0]) and fits(promised[1:], seen[1:])


def _alike(promised: str, seen: str) -> bool:
    """Whether a line is the promised one; ``...`` in it stands for any text."""
    parts = map(re.escape, promised.split("..."))
    return re.fullmatch(".*".join(parts), seen.rstrip()) is not None


CHANGES = re.compile(r"\d[\d.,:T-]*(?:e[+-]?\d+)?|  +")


def shape(lines: list[str]) -> list[str]:
    """Lines without what differs from run to run: numbers, times, the width of columns."""
    return [
        CHANGES.sub(lambda part: "#" if part[0].strip() else " ", line.rstrip()) for line in lines
    ]


def sessions(block: str) -> list[tuple[str, list[str]]]:
    """Commands of a console block, each with the lines that follow it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line.removeprefix('> ')}", [])
        else:
            found[-1][1].append(line)
    return found


def can_run(name: str) -> bool:
    """Whether a console block is typed here, by the second word of its info string."""
    if name.startswith("with-"):
        path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
        return shutil.which(name.removeprefix("with-"), path=path) is not None
    return name != "no-run"


def marked(page: Path, slow: Collection[str]) -> Any:
    """A page as a parameter of a test, left to the slow suite where its name is among these."""
    return pytest.param(page, marks=pytest.mark.slow) if page.name in slow else page


@pytest.mark.parametrize(
    "guide", [marked(path, SLOW) for path in GUIDES], ids=lambda path: path.name
)
def test_a_guide_shows_what_happens(guide: Path, tmp_path: Path) -> None:
    commands = 0
    machine = dict(os.environ)
    if guide.name == "clusters.md":
        machine |= installed(tmp_path.with_name(f"{tmp_path.name}-cluster"))
    for language, name, text in BLOCK.findall(guide.read_text(encoding="utf-8")):
        if language == "console":
            for line, promised in sessions(text) if can_run(name) else []:
                # Manifests written this very moment are read again: see the cache's tick.
                seen = typed(line.split("  #")[0], tmp_path, machine).splitlines()
                while promised and not promised[-1].strip():
                    promised.pop()
                assert fits(promised, seen), f"{line}\n" + "\n".join(seen)
                commands += 1
        elif name:
            target = tmp_path / shlex.split(name)[0]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                target.chmod(0o755)
            time.sleep(0.02)
    assert commands > 0


@pytest.mark.slow
def test_the_first_page_shows_what_a_reader_sees(tmp_path: Path) -> None:
    """Every line of output is real; ``UPDATE_SCREENS=1`` writes what appears now into the page."""
    text = FIRST.read_text(encoding="utf-8")
    for language, name, block in BLOCK.findall(text):
        if language != "console" or not can_run(name):
            continue
        renewed = ""
        for line, promised in sessions(block):
            seen = typed(line, tmp_path).splitlines()
            renewed += "".join(f"{one}\n" for one in (f"$ {line}", *seen))
            if not os.environ.get("UPDATE_SCREENS"):
                assert shape(seen) == shape(promised), line
        text = text.replace(block, renewed, 1)
    if os.environ.get("UPDATE_SCREENS"):
        FIRST.write_text(text, encoding="utf-8")


@each_row("guide", [*GUIDES, FIRST], ids=lambda path: path.name)
def test_every_link_of_a_guide_leads_somewhere(guide: Path) -> None:
    for target in LINK.findall(guide.read_text(encoding="utf-8")):
        assert (guide.parent / target).exists(), target


FLAGS = re.compile(r"\bfdl libtorch ([a-z]+)((?: +[^\s|&;)`>]+)*)")


def test_the_commands_of_the_libtorch_pages_exist() -> None:
    seen = set()
    for page in GUIDES:
        for name, rest in FLAGS.findall(page.read_text(encoding="utf-8")):
            known = TABLE[f"libtorch {name}"].get("options", {})
            own = rest.partition(" -- ")[0].split()
            flags = {word[2:].partition("=")[0] for word in own if word.startswith("--")}
            assert flags - {""} <= set(known), f"{page.name}: fdl libtorch {name}{rest}"
            seen |= {(name, flag) for flag in flags}
    assert {("install", "locked"), ("env", "format"), ("build", "archs")} <= seen


def files_of(page: str) -> dict[str, str]:
    """Name -> text of the files that a guide writes."""
    text = (Path(__file__).parent.parent / "docs/guide" / page).read_text(encoding="utf-8")
    return {name: content for _, name, content in BLOCK.findall(text) if name}


def test_the_cache_of_the_workflow_is_that_of_the_lock() -> None:
    files = files_of("cpp-and-rust.md")
    workflow = yaml.safe_load(files["workflow.yml"])
    steps = [one["run"] for one in workflow["jobs"]["build"]["steps"] if "run" in one]
    assert "fdl libtorch install cpu --locked" in steps
    cached = next(one["with"] for one in workflow["jobs"]["build"]["steps"] if "cache" in str(one))
    assert "hashFiles('libtorch.lock')" in cached["key"]


def test_the_image_of_the_cpp_page_has_no_faults(tmp_path: Path) -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("hadolint is not installed")
    (tmp_path / "Dockerfile").write_text(files_of("cpp-and-rust.md")["Dockerfile"])
    # Versions of packages are the reader's choice.
    told = subprocess.run(
        [linter, "--ignore", "DL3008", "--ignore", "DL3013", "Dockerfile"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (told.returncode, told.stdout) == (0, "")
