"""The way of one command through the packages of ``fdl``: which package calls which, and how often.

    python scripts/crossings.py train quick

runs ``fdl train quick`` in the working directory, in this process, twice: the first run fills the
caches, the second is counted. A crossing is a call from a function of one package to a function of
another. The list is in the order of the first call, so a straight way reads from top to bottom.
Calls of single files (a node, a plan, a secret) read a value; they are counted apart.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import fdl
from fdl.cli.entry import main

_ROOT = str(Path(fdl.__file__).parent)


def package(frame: FrameType) -> str:
    """The package of ``fdl`` in which a frame runs; empty for other code."""
    file = frame.f_code.co_filename
    if not file.startswith(_ROOT) or frame.f_code.co_name == "<module>":
        return ""
    return file[len(_ROOT) + 1 :].split("/")[0].removesuffix(".py")


def caller(frame: FrameType) -> str:
    """The package of ``fdl`` that made a call, directly or through other code."""
    above = frame.f_back
    while above is not None:
        if name := package(above):
            return name
        above = above.f_back
    return ""


def count(words: list[str]) -> Counter[tuple[str, str]]:
    """Run one command line; the calls between packages, in the order of the first of each pair."""
    crossings: Counter[tuple[str, str]] = Counter()

    def watch(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        name = package(frame)
        if name and (above := caller(frame)) and above != name:
            crossings[above, name] += 1

    sys.setprofile(watch)
    try:
        main(words)
    finally:
        sys.setprofile(None)
    return crossings


if __name__ == "__main__":
    here = Path.cwd()
    main(sys.argv[1:])
    # A command is started by a change of the working directory.
    os.chdir(here)
    counted = count(sys.argv[1:])
    for (above, name), calls in counted.items():
        sys.stdout.write(f"{above:>12} -> {name:<12} {calls:4}\n")
    way = {pair: calls for pair, calls in counted.items() if Path(_ROOT, pair[1]).is_dir()}
    back = [pair for pair in way if pair[::-1] in way]
    sys.stdout.write(
        f"{sum(way.values())} calls between packages, {len(back)} pairs in both directions; "
        f"{sum(counted.values()) - sum(way.values())} calls that read a value\n"
    )
