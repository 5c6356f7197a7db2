"""A ``docker`` that builds images without containers.

``Docker(folder)`` puts it on a PATH. ``build`` runs the context's ``compile.sh`` with the build
arguments and prefixes its output as BuildKit does; ``create`` and ``cp`` hand out what came of it.
Every call is recorded. This file is also the program itself, and needs the standard library only.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

DOWN = "Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?"


class Docker:
    """The test's side.

    Args:
        folder: Where it keeps its program, images and records.
        daemon: Whether it answers.
    """

    def __init__(self, folder: Path, *, daemon: bool = True) -> None:
        self.folder = folder
        bin_ = folder / "bin"
        bin_.mkdir(parents=True)
        program = bin_ / "docker"
        program.write_text(f"#!{sys.executable} -IB\n{Path(__file__).read_text('utf-8')}")
        program.chmod(0o755)
        (folder / "state.json").write_text(json.dumps({"daemon": daemon}))
        self.path = f"{bin_}{os.pathsep}{os.environ['PATH']}"

    def calls(self) -> list[dict[str, Any]]:
        """Every call but the question for the version: ``argv``, ``env``, ``cwd``."""
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def words(self) -> list[list[str]]:
        """The arguments of those calls."""
        return [call["argv"] for call in self.calls()]


def _serve(folder: Path, argv: list[str]) -> int:
    state = json.loads((folder / "state.json").read_text())
    if not state["daemon"]:
        sys.stderr.write(f"{DOWN}\n")
        return 1
    if argv[0] == "version":
        sys.stdout.write("28.2.2\n")
        return 0
    with (folder / "calls.jsonl").open("a") as record:
        call = {"argv": argv, "env": dict(os.environ), "cwd": str(Path.cwd())}
        record.write(json.dumps(call) + "\n")
    image = folder / "image"
    if argv[0] == "build":
        return _build(folder, image, argv)
    if argv[0] == "create":
        (folder / "container").write_text(argv[argv.index("--name") + 1])
        sys.stdout.write("0123456789ab\n")
    if argv[0] == "cp":
        container, _, inside = argv[1].partition(":")
        if container != (folder / "container").read_text() or inside != "/usr/local/libtorch":
            return 1
        # Like the real one: into a folder that exists, under its own name.
        shutil.copytree(image, Path(argv[2]) / "libtorch", symlinks=True)
    if argv[0] == "rm" and not (folder / "container").exists():
        sys.stderr.write("Error: No such container\n")
        return 1
    return 0


def _build(folder: Path, image: Path, argv: list[str]) -> int:
    arguments = [
        word.split("=", 1) for before, word in itertools.pairwise(argv) if before == "--build-arg"
    ]
    sys.stdout.write("#7 [build 3/5] RUN apt-get update\n#7 DONE 3.1s\n")
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)
    child = subprocess.Popen(
        ["sh", f"{argv[-1]}/compile.sh", str(cache), str(image)],
        env={**os.environ, **dict(arguments)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        sys.stdout.write(f"#8 1.234 {line}")
        sys.stdout.flush()
    return child.wait()


if __name__ == "__main__":
    sys.exit(_serve(Path(__file__).parent.parent, sys.argv[1:]))
