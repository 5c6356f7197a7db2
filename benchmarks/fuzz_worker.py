"""One process of the fuzzer: takes folders on standard input, answers with what it found there."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.manifest_mutations import ENV
from fdl.base.errors import FdlError
from fdl.cli.entry import main as fdl
from fdl.plan.planner import Host

LIMIT_CPU_SECONDS = 2
LIMIT_MEGABYTES = 500
# What the machine is protected with, should the limit above be missed by far.
_ADDRESS_SPACE_BYTES = 4 << 30

_MOST_COMMANDS = 5
_MANIFEST = re.compile(r"[\w./-]+\.(ya?ml|json)(\.example|\.dist)?\b")


class Case:
    """One damaged project, looked at from the outside."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.record: dict[str, Any] = {
            "accepted": False,
            "calls": 0,
            "refusals": 0,
            "cpu_seconds": 0.0,
            "slowest": "",
            "findings": [],
        }

    def examine(self) -> dict[str, Any]:
        """Everything that reads manifests, in turn."""
        os.chdir(self.folder)
        self.type("--help")
        self.type("--env", ENV, "list")
        self.type("--env", ENV, "config", "show")
        self.type("config", "show", "--json")
        self.type("self", "schema", "list", "--json")
        shown = self.type("config", "show")
        self.record["accepted"] = shown is not None
        self._read_again(shown)
        listed = self.type("list", "--json")
        for names in _commands(listed):
            self.type("--dry-run", *names)
            self.type("--dry-run", "--json", *names)
            self.type(*names, "--help")
        return self.record

    def type(self, *argv: str) -> str | None:
        """One call of fdl; its output, or None when it refused."""
        out, err = StringIO(), StringIO()
        record = self.record
        record["calls"] += 1
        start = time.process_time()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = fdl(list(argv), Host(os.environ, False, False))
        except BaseException:
            # Every way to escape is what is looked for here.
            last = traceback.format_exc().strip().splitlines()
            self.find(argv, f"{last[-1][:300]} ({' '.join(last[-3:-1])[:300]})")
            code = -1
        seconds = time.process_time() - start
        if seconds > record["cpu_seconds"]:
            record["cpu_seconds"], record["slowest"] = seconds, " ".join(argv)[:200]
        if seconds > LIMIT_CPU_SECONDS:
            self.find(argv, f"took {seconds:.1f} s of CPU")
        if code == 0:
            return out.getvalue()
        record["refusals"] += 1
        if code > 0 and not self._names_a_place(err.getvalue()):
            self.find(argv, f"names no file: {err.getvalue()[:300]!r}")
        return None

    def find(self, argv: tuple[str, ...], text: str) -> None:
        """Record something that should not have happened."""
        self.record["findings"].append(f"`fdl {' '.join(argv)[:100]}`: {text}")

    def _names_a_place(self, text: str) -> bool:
        return bool(_MANIFEST.search(text)) or self.folder in text

    def _read_again(self, shown: str | None) -> None:
        """The cache must tell what the file tells."""
        from fdl.manifest.select.project import Project, locate

        found = locate()
        if shown is None or found is None or found.is_example:
            return
        try:
            _ = Project(found, writes_cache=True).root
        except FdlError as problem:
            self.find(("config", "show"), f"accepted, then refused: {problem.message[:200]}")
            return
        if self.type("config", "show") != shown:
            self.find(("config", "show"), "the cache tells something else than the file")


def _commands(listed: str | None) -> list[list[str]]:
    """Some of the commands of a project; words that would be taken for flags are none of them."""
    if listed is None:
        return []
    commands = [one["command"] for one in json.loads(listed)["commands"]]
    typed = [names for names in commands if not any(name[:1] in ("-", "") for name in names)]
    half = _MOST_COMMANDS // 2
    return typed if len(typed) <= _MOST_COMMANDS else [*typed[: half + 1], *typed[-half:]]


def main() -> None:
    """Answer one line of JSON per folder until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    # Help pages must not start the programs that damaged manifests name.
    os.environ.update(FDL_SCHEMA_PROBE="1", CI="1", COLUMNS="80")
    os.environ.pop("FDL_ENV", None)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        folder = line.rstrip("\n")
        record = Case(folder).examine()
        os.chdir(Path(folder).anchor)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        record["megabytes"] = peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
        if record["megabytes"] > LIMIT_MEGABYTES:
            record["findings"].append(f"the process has grown to {record['megabytes']:.0f} MB")
        answers.write(json.dumps(record) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
