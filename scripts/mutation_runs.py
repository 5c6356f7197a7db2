"""Run tests in a copy of the checkout, those first that are most likely to notice a change.

Each run is a fork of this process, which has imported torch and pytest but neither package of the
checkout. So a run costs the tests alone, and imports the changed code.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock, Timeout
from line_trace import SETTINGS, LineTrace
from mutants import Mutant

FIRST_SECONDS = 10.0
"""How long the tests that run first lasted together without a change."""
TEST_SECONDS = 60
OURS = ("line_trace.py", "mutation_runs.py")
"""The files that decide what is known about a test."""
_NOTHING_NOTICED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def prepare(torch: bool) -> None:
    """Import once what each run would import again: pytest, its plugins, and torch if asked for."""
    os.environ["OMP_NUM_THREADS"] = "1"  # as tests/conftest.py sets it
    with tempfile.TemporaryDirectory(prefix="mutation-empty-") as empty:
        words = ["-q", "--collect-only", "-p", "no:cacheprovider", f"--rootdir={empty}"]
        with contextlib.redirect_stdout(io.StringIO()):
            pytest.main([*words, "-c", os.devnull, empty])
    names = ("hypothesis.strategies", "typer", "pydantic", "yaml", "rich.console")
    for name in (*names, *(("torch", "torch.utils.data", "safetensors.torch") if torch else ())):
        importlib.import_module(name)
    if torch:
        module = sys.modules["torch"]
        module.optim.SGD([module.nn.Parameter(module.zeros(1))])  # imports more than torch itself


def kept_folder(root: Path) -> Path:
    """A temporary folder for a checkout, the same for each run."""
    where = hashlib.sha256(str(root).encode()).hexdigest()[:10]
    folder = Path(tempfile.gettempdir()) / f"mutation-{os.getuid()}-{where}"
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def copied(root: Path) -> Generator[Path, None, None]:
    """A copy of the checkout that nobody else uses now; it is kept for the next time.

    Its compiled files say for which source they are, so a changed file is never mistaken for the
    file before the change.
    """
    for number in range(8):
        folder = kept_folder(root) / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=0)
            break
    else:
        raise SystemExit("error: eight runs are going on already")
    try:
        _update(root, folder / "checkout")
        yield folder / "checkout"
    finally:
        lock.release()


def _update(root: Path, copy: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wanted = {name for name in listed.stdout.split("\0") if (root / name).is_file()}
    for folder in ("fdl", "flodl", "tests"):
        for old in (copy / folder).rglob("*"):
            name = old.relative_to(copy).as_posix()
            if old.is_file() and "__pycache__" not in name and name not in wanted:
                old.unlink()
    for name in sorted(wanted):
        source, target = root / name, copy / name
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        if name.endswith(".py") and name.startswith(("fdl/", "flodl/", "tests/")):
            hashed = py_compile.PycInvalidationMode.CHECKED_HASH
            py_compile.compile(str(target), invalidation_mode=hashed, quiet=2)


@dataclass
class Covered:
    """What one test runs.

    Attributes:
        seconds: How long it lasts.
        lines: The lines that ran of each changed file.
        unsure: Whether other lines may have run, in a process that was killed.
    """

    seconds: float = 0.0
    lines: dict[str, set[int]] = field(default_factory=dict)
    unsure: bool = False

    def runs(self, change: Mutant) -> bool:
        """Whether the changed lines run."""
        places = range(change.line, change.last + 1)
        return not self.lines.get(change.file, set()).isdisjoint(places)

    def add(self, lines: dict[str, list[int]], below: Path) -> None:
        """Add lines of files with absolute names."""
        for name, numbers in lines.items():
            self.lines.setdefault(Path(name).relative_to(below).as_posix(), set()).update(numbers)


Coverage = dict[str, Covered]
"""For each test of a target, by its pytest name."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: the exit code, the tests that failed, and all that was printed."""

    code: int
    failures: Sequence[str]
    text: str

    @property
    def failed(self) -> str:
        """The first test that failed."""
        return self.failures[0] if self.failures else ""

    @property
    def noticed(self) -> bool:
        """Whether anything failed."""
        return self.code not in _NOTHING_NOTICED


class Order:
    """A pytest plugin: which tests run, in which order, and which of them fails first.

    Args:
        rank: The place of a test by its name; None leaves it out.
    """

    def __init__(self, rank: Callable[[str], Any]) -> None:
        self._rank = rank
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose and sort."""
        chosen = [one for one in items if self._rank(one.nodeid) is not None]
        items[:] = sorted(chosen, key=lambda one: self._rank(one.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported."""
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails."""
        if report.failed:
            self.failed.append(report.nodeid)


class Watch(Order):
    """Note what each test runs, and how long it lasts."""

    def __init__(self, files: Sequence[str]) -> None:
        super().__init__(lambda _name: 0)
        self.trace = LineTrace(files)
        self.imported: dict[str, list[int]] = {}
        self.tests: dict[str, tuple[float, dict[str, list[int]]]] = {}

    def pytest_collection_finish(self) -> None:
        """What ran until now belongs to every test."""
        self.imported = self.trace.take()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """One test with its fixtures."""
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            self.tests[item.nodeid] = (time.perf_counter() - begun, self.trace.take())


def run_tests(
    copy: Path, tests: Sequence[str], plugin: Order, limit: float, trace: str = ""
) -> Outcome:
    """Run tests in a fork; ``trace`` is the setting of :mod:`line_trace` for its child processes.

    A run that lasts longer than ``limit`` seconds is ended and has failed.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-run-") as name:
        folder = Path(name)
        child = os.fork()
        if child == 0:
            _in_child(copy, tests, plugin, folder, trace)
        code = _ended(child, limit)
        printed = (folder / "printed").read_text(encoding="utf-8", errors="replace")
        result = folder / "result.json"
        found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    if isinstance(plugin, Watch):
        plugin.imported, plugin.tests = found.get("imported", {}), found.get("tests", {})
    return Outcome(code, found.get("failed", []), printed)


def _in_child(copy: Path, tests: Sequence[str], plugin: Order, folder: Path, trace: str) -> None:
    """Be ``python -m pytest`` in the copy; never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(copy)
        printed = os.open(folder / "printed", os.O_WRONLY | os.O_CREAT)
        for stream, target in ((os.open(os.devnull, os.O_RDONLY), 0), (printed, 1), (printed, 2)):
            os.dup2(stream, target)
        path = [str(copy)]
        if trace:
            (folder / "site").mkdir()
            ours = Path(__file__).with_name("line_trace.py")
            shutil.copy(ours, folder / "site" / "sitecustomize.py")
            path.insert(0, str(folder / "site"))
        os.environ |= {"PYTHONPATH": os.pathsep.join(path), "CI": "", SETTINGS: trace}
        if not trace:
            del os.environ[SETTINGS]
        sys.path[0] = str(copy)
        sys.modules["__main__"] = types.ModuleType("__main__")
        words = ["-q", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly",
                 "--hypothesis-seed=0", f"--timeout={TEST_SECONDS}"]  # fmt: skip
        if isinstance(plugin, Watch):
            plugin.trace.start()
        else:
            words.append("-x")
        code = int(pytest.main([*words, *tests], plugins=[plugin]))
        sys.settrace(None)
        public = {name: value for name, value in vars(plugin).items() if name[0] != "_"}
        public.pop("trace", None)
        (folder / "result.json").write_text(json.dumps(public), encoding="utf-8")
        sys.stdout.flush()
    except BaseException as problem:
        os.write(2, repr(problem).encode())
    finally:
        os._exit(code)


def _ended(child: int, limit: float) -> int:
    """The exit code of a run; its whole tree of processes is ended."""
    until = time.monotonic() + limit
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what the tests have left
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            for one in psutil.Process(child).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            os.kill(child, signal.SIGKILL)
            until = float("inf")
        time.sleep(0.02)


def _chosen(names: Sequence[str]) -> Callable[[str], int | None]:
    return {name: at for at, name in enumerate(names)}.get


def test_files(copy: Path, places: Iterable[str]) -> list[str]:
    """The files of tests in folders and files below the copy."""
    found: list[str] = []
    for place in places:
        here = copy / place
        files = sorted(here.rglob("test_*.py")) if here.is_dir() else [here]
        found += [file.relative_to(copy).as_posix() for file in files]
    return found


def _digest(copy: Path, files: Iterable[Path | str]) -> str:
    digest = hashlib.sha256()
    for file in sorted(copy / file for file in files):
        digest.update(str(file.relative_to(copy)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def state(copy: Path, sources: Iterable[Path], tests: Iterable[str]) -> str:
    """A digest of the code that is changed and of the tests that should notice."""
    return _digest(copy, [*sources, *tests])


def coverage(copy: Path, sources: Sequence[Path], tests: Sequence[str]) -> Coverage:
    """What each test runs of the sources; kept in the folder of the copy for the next time.

    Raises:
        SystemExit: A test fails without any change.
    """
    package = copy / sources[0].relative_to(copy).parts[0]
    code = _digest(copy, package.rglob("*.py"))
    ours = [Path(__file__).with_name(name).read_bytes() for name in OURS]
    kept = copy.parent.parent / "coverage"
    kept.mkdir(exist_ok=True)
    found: Coverage = {}
    for test in tests:
        key = hashlib.sha256(repr((code, _digest(copy, [test]), test, sources, ours)).encode())
        file = kept / f"{key.hexdigest()[:20]}.json"
        if not file.exists():
            sys.stderr.write(f"{test}: which lines does each test run?\n")
            part = file.with_name(f"{file.name}.{os.getpid()}")
            part.write_text(json.dumps(_traced(copy, sources, test)), encoding="utf-8")
            part.replace(file)
        for name, one in json.loads(file.read_text(encoding="utf-8")).items():
            lines = {source: set(numbers) for source, numbers in one["lines"].items()}
            found[name] = Covered(one["seconds"], lines, one["unsure"])
    return found


def _traced(copy: Path, sources: Sequence[Path], test: str) -> dict[str, Any]:
    files = [str(file) for file in sources]
    watch = Watch(files)
    with tempfile.TemporaryDirectory(prefix="mutation-lines-") as folder:
        trace = json.dumps({"folder": folder, "files": files})
        outcome = run_tests(copy, [test], watch, limit=600, trace=trace)
        if outcome.noticed:  # perhaps because its lines are noted
            again = run_tests(copy, [test], Order(_chosen(outcome.failures)), limit=600)
            if again.noticed or not outcome.failures:
                raise SystemExit(f"{again.text}\nerror: {test} fails without any change")
        found = {name: Covered(seconds) for name, (seconds, _) in watch.tests.items()}
        for name, covered in found.items():
            covered.add(watch.tests[name][1], copy)
            covered.add(watch.imported, copy)
        for written in (
            file for end in ("begun", "json") for file in Path(folder).glob(f"*.{end}")
        ):
            ran = json.loads(written.read_text(encoding="utf-8"))
            for name in [ran["test"]] if ran["test"] in found else found:
                found[name].add(ran["lines"], copy)
                found[name].unsure |= not written.with_suffix(".json").exists()
    return {
        name: vars(one) | {"lines": {file: sorted(lines) for file, lines in one.lines.items()}}
        for name, one in found.items()
    }


def likely(change: Mutant, covered: Coverage, before: str = "") -> list[str]:
    """The tests most likely to notice a change, the best first.

    Those that run the changed line come first, and among them those that run little else. The first
    of all is the one that noticed the change ``before``. They last a few seconds together.
    """

    def rank(name: str) -> tuple[bool, float, float]:
        one = covered[name]
        here = len(one.lines.get(change.file, set()))
        everything = sum(map(len, one.lines.values())) or 1
        return not one.runs(change), -here / everything, one.seconds

    seconds, chosen = 0.0, [before] if before in covered else []
    for name in sorted(covered, key=rank):
        seconds += covered[name].seconds
        if seconds > FIRST_SECONDS and chosen:
            break
        if name != before:
            chosen.append(name)
    return chosen


def who_notices(
    copy: Path, root: Path, change: Mutant, covered: Coverage, before: str = "", quick: bool = False
) -> str:
    """The test that notices a change, or ``""``.

    Before the answer is ``""``, all files of tests run in which any test runs the changed lines, or
    may run them. With ``quick`` only those tests run that are most likely to notice.
    A test that fails without the change as well has not noticed it.
    """
    limit = 60 + 5 * sum(one.seconds for one in covered.values())
    file = copy / change.file
    unfit: set[str] = set()
    first = likely(change, covered, before)
    stages: list[tuple[list[str], int | None]] = [(first, None)]
    if not quick:
        stages.append((reached(first, change, covered), len(covered)))
    for tests, others in stages:
        files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
        while True:
            place: dict[str, int | None] = {name: at for at, name in enumerate(tests)}
            place |= dict.fromkeys(unfit)
            with _changed(file, change, root):
                order = Order(functools.partial(_place, place, others))
                outcome = run_tests(copy, files, order, limit)
            if not outcome.noticed:
                break
            if "::" not in outcome.failed:
                unchanged = run_tests(copy, files, Order(_chosen(tests)), limit)
                if unchanged.noticed:
                    raise SystemExit(f"{unchanged.text}\nerror: {files} fail without any change")
                return outcome.failed or f"the run ends with {outcome.code}"
            alone = Order(_chosen([outcome.failed]))
            if not run_tests(copy, [outcome.failed.partition("::")[0]], alone, limit).noticed:
                return outcome.failed
            unfit.add(outcome.failed)
    return ""


def _place(place: dict[str, int | None], others: int | None, name: str) -> int | None:
    """Where a test stands; a change can make tests that were not there before."""
    return place.get(name, others)


def reached(first: list[str], change: Mutant, covered: Coverage) -> list[str]:
    """All tests that a change can reach, file by file; a fixture can serve all tests of a file."""
    wanted = {
        name.partition("::")[0]
        for name, one in covered.items()
        if one.runs(change) or one.unsure or name in first
    }
    files = list(dict.fromkeys(name.partition("::")[0] for name in [*first, *covered]))
    chosen = [name for name in covered if name.partition("::")[0] in wanted]
    return sorted(chosen, key=lambda name: files.index(name.partition("::")[0]))


@contextlib.contextmanager
def _changed(file: Path, change: Mutant, root: Path) -> Generator[None, None, None]:
    original = root / change.file
    file.write_bytes(change.applied(original.read_bytes()))
    try:
        yield
    finally:
        shutil.copy2(original, file)
