"""Thousands of damaged projects through everything that reads manifests.

Whatever stands in a manifest, ``fdl`` answers with an error that names a file, in reasonable time
and memory; never with a traceback. Nothing is executed: commands are only planned. A case is its
seed: the same number makes the same files again.

    python -m benchmarks.fuzz_manifests --count 10000 --output docs/benchmarks/fuzz.md
    python -m benchmarks.fuzz_manifests --seed 4711 --count 1 --keep DIR   # look at one case
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz_worker import LIMIT_CPU_SECONDS, LIMIT_MEGABYTES
from benchmarks.manifest_mutations import MUTATIONS, damaged, projects, write
from benchmarks.measure import (
    command_line,
    judged,
    page,
    publish,
    read_options,
    table,
)

HANG_SECONDS = 60
"""A case that has not ended by then is killed; far above what a busy machine needs."""


@dataclass
class Outcome:
    """What became of one case."""

    seed: int
    mutations: list[str]
    accepted: bool = False
    calls: int = 0
    refusals: int = 0
    cpu_seconds: float = 0.0
    slowest: str = ""
    megabytes: float = 0.0
    findings: list[str] = field(default_factory=list)


class Worker:
    """A process that takes one folder after the other; it is replaced when it hangs or dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, folder: Path) -> dict[str, Any]:
        """The worker's record of one case; only ``findings`` when there was none to get."""
        if self._process is None:
            self._process = _started()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{folder}\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], HANG_SECONDS)[0]:
            self.stop()
            return {"findings": [f"hangs: killed after {HANG_SECONDS} s"]}
        line = process.stdout.readline()
        if not line:
            self.stop()
            return {"findings": [f"the worker died with exit code {process.returncode}"]}
        record: dict[str, Any] = json.loads(line)
        if record["megabytes"] > LIMIT_MEGABYTES:
            # Its peak would be blamed on all later cases.
            self.stop()
        return record

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fuzz_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def fuzz(seeds: Sequence[int], workers: int, keep: Path | None = None) -> list[Outcome]:
    """Run the cases; those with findings are kept as folders of that name under ``keep``."""
    originals = projects()
    waiting = iter(seeds)
    lock = threading.Lock()
    outcomes: list[Outcome] = []

    def work() -> None:
        worker = Worker()
        try:
            for seed in _shared(waiting, lock):
                outcome = _case(worker, seed, originals, keep)
                with lock:
                    outcomes.append(outcome)
        finally:
            worker.stop()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(outcomes, key=lambda outcome: outcome.seed)


def _shared(seeds: Iterator[int], lock: threading.Lock) -> Iterator[int]:
    while True:
        with lock:
            seed = next(seeds, None)
        if seed is None:
            return
        yield seed


def _case(worker: Worker, seed: int, originals: Sequence[Any], keep: Path | None) -> Outcome:
    files, mutations = damaged(seed, list(originals))
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        folder = Path(temporary).resolve() / "project"
        folder.mkdir()
        write(files, folder)
        outcome = Outcome(seed, mutations, **worker.run(folder))
        if outcome.findings and keep is not None:
            # Links and pipes are kept as what they are.
            shutil.rmtree(keep / str(seed), ignore_errors=True)
            (keep / str(seed)).mkdir(parents=True)
            write(files, keep / str(seed))
    return outcome


def described(options: argparse.Namespace, outcomes: Sequence[Outcome], seconds: float) -> str:
    """The report."""
    first, last = outcomes[0].seed, outcomes[-1].seed
    slowest = max(outcomes, key=lambda outcome: outcome.cpu_seconds)
    largest = max(outcome.megabytes for outcome in outcomes)
    findings = [(outcome, text) for outcome in outcomes for text in outcome.findings]
    facts = [
        ["projects damaged", f"{len(outcomes)} (seeds {first} to {last})"],
        ["still accepted", str(sum(outcome.accepted for outcome in outcomes))],
        ["calls of `fdl`", str(sum(outcome.calls for outcome in outcomes))],
        ["of these refused with an error", str(sum(outcome.refusals for outcome in outcomes))],
        ["slowest call", f"{slowest.cpu_seconds:.2f} s of CPU (seed {slowest.seed})"],
        ["most memory", f"{largest:.0f} MB"],
        ["findings", str(len(findings))],
        ["no finding", judged(not findings)],
    ]
    parts = [
        "Every case is a real project with one to five kinds of damage. Each goes through help, "
        "`list`, `config show` (with and without an overlay, fresh and cached) and the dry run and "
        "help of its commands. A finding is an exception that is no error message, an error "
        f"message that names no file, a call that takes more than {LIMIT_CPU_SECONDS} s of CPU, a "
        f"process that grows beyond {LIMIT_MEGABYTES} MB, a hang, or a cache that tells something "
        "else than the file.",
        table(["", ""], facts),
        table(["damage", "cases", "still accepted", "findings"], _by_mutation(outcomes)),
    ]
    if findings:
        parts.append("## Findings")
        parts.append("\n".join(f"- seed {outcome.seed}: {text}" for outcome, text in findings))
    return page(
        options,
        "Damaged manifests",
        f"{seconds:.0f} s.",
        *parts,
        packages=("flodl", "pyyaml", "pydantic"),
    )


def _by_mutation(outcomes: Sequence[Outcome]) -> list[list[str]]:
    cases: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    findings: Counter[str] = Counter()
    for outcome in outcomes:
        for name in set(outcome.mutations):
            cases[name] += 1
            accepted[name] += outcome.accepted
            findings[name] += bool(outcome.findings)
    return [
        [name, str(cases[name]), str(accepted[name]), str(findings[name])] for name in MUTATIONS
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run and publish; the exit code is 1 when something was found."""
    parser = command_line("fuzz_manifests", __doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="folder for the projects something was found in")
    options = read_options(parser, argv, count=2, workers=1)
    start = time.monotonic()
    seeds = range(options.seed, options.seed + options.count)
    outcomes = fuzz(seeds, options.workers, options.keep)
    publish(described(options, outcomes, time.monotonic() - start), options.output)
    return 1 if any(outcome.findings for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
