"""The page of 500 runs, beside those of TensorBoard and trackio.

Every tool gets the same runs, settings and losses, written by its own library in an environment of
its own. A real browser opens its page with cold and with warm files. The first curve is there when
the first chart has coloured pixels. fdl also shows runs of full length.

    python -m benchmarks.runs_page --output docs/benchmarks/runs_page.md
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.many_runs import losses, make_runs, settings
from benchmarks.measure import Bar, command_line, in_turns, page, publish, read_options, table
from fdl.run_pages.cache import folder as user_cache
from tests.browser.chromium import Browser, find

WRITERS = Path(__file__).parent / "runners/runs_page/write.py"
FULL_POINTS = 100_000
PATIENCE = 90.0
SETTINGS = ("lr", "batch_size", "optimizer", "width", "dropout", "seed")
SETTLE_SECONDS = 3.0
SETTINGS_SECONDS = 15.0
COLOURED = 150
"""Pixels with a colour that make a curve; grids and letters are grey."""

BARS = {"fdl, full length": Bar(2.0)}

# Looks into shadow roots, and finds the first chart: a large canvas, or a drawing with long paths.
_CHART = """(() => {
  const found = [];
  const look = (node) => {
    for (const one of node.querySelectorAll("*")) {
      if (one.shadowRoot) look(one.shadowRoot);
      const name = one.tagName.toLowerCase();
      if (name === "canvas" || (name === "svg" && one.querySelector("path"))) {
        const box = one.getBoundingClientRect();
        if (box.width >= 200 && box.height >= 120 && box.top < innerHeight - 100) found.push(box);
      }
    }
  };
  look(document);
  const box = found[0];
  return box ? [box.x, box.y, box.width, Math.min(box.height, innerHeight - box.y)] : null;
})()"""

_TEXT = """(() => {
  const parts = [];
  const look = (node) => {
    for (const one of node.childNodes) {
      if (one.nodeType === 3 && one.parentElement?.checkVisibility?.()) parts.push(one.data);
      if (one.shadowRoot) look(one.shadowRoot);
      if (one.nodeType === 1 && !/^(script|style)$/i.test(one.tagName)) look(one);
    }
  };
  look(document.body);
  return parts.join("\\n");
})()"""


def _clicks(text: str) -> str:
    """A click on the smallest element with a text; the script says whether it was there."""
    return (
        "(() => { const all = [...document.querySelectorAll('*')].filter(one => "
        f"one.textContent.trim().toLowerCase() === {json.dumps(text.lower())} "
        "&& one.checkVisibility()); const one = all[all.length - 1]; "
        "if (!one) return false; one.click(); return true })()"
    )


class Subject(NamedTuple):
    """One tool in one form.

    Attributes:
        tool: The package that is installed; ``fdl`` for this project.
        serve: From the folder of the runs and a port to the command of its server.
        path: The address of the page with curves.
        begin: Scripts that click what must be clicked before a curve appears.
        differ: Scripts that click from there to the settings of the runs.
    """

    tool: str
    serve: Callable[[Path, int], list[str]]
    path: str = "/"
    begin: tuple[str, ...] = ()
    differ: tuple[str, ...] = ()


_CHECK_ALL = """(() => {
  const box = document.querySelector("runs-data-table mat-checkbox input");
  if (!box) return false;
  if (!box.checked) box.click();
  return true;
})()"""


def _tensorboard(fast: str) -> Subject:
    def serve(runs: Path, port: int) -> list[str]:
        words = ["--logdir", str(runs), "--port", str(port), f"--load_fast={fast}"]
        return ["tensorboard", *words]

    return Subject("tensorboard", serve, "/#timeseries", (_CHECK_ALL,), (_clicks("HPARAMS"),))


def _fdl(runs: Path, port: int) -> list[str]:
    return ["fdl", "runs", "ui", str(runs), "--no-open", "--port", str(port)]


SUBJECTS = {
    "fdl": Subject("fdl", _fdl),
    "fdl, full length": Subject("fdl", _fdl),
    "TensorBoard": _tensorboard("auto"),
    "TensorBoard, load_fast=false": _tensorboard("false"),
    "trackio": Subject(
        "trackio",
        lambda _runs, _port: ["trackio", "show", "--project", "runs"],
        "/?project=runs",
        differ=(_clicks("Runs"),),
    ),
}


def environment_of(tool: str, folder: Path) -> Path:
    """The programs of a tool, in an environment of its own, which is made at the first use."""
    if tool == "fdl":
        return Path(sys.executable).parent
    home = folder / tool
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet", tool]
        subprocess.run(pip, check=True)
        (home / "installed").touch()
    return home / "bin"


def version_of(tool: str, programs: Path) -> str:
    """Name and version of the installed tool."""
    name = "flodl" if tool == "fdl" else tool
    code = f"from importlib.metadata import version; print(version({name!r}))"
    done = subprocess.run(
        [programs / "python", "-c", code], capture_output=True, text=True, check=True
    )
    return f"{tool} {done.stdout.strip()}"


def write(tool: str, programs: Path, folder: Path, runs: int, points: int) -> float:
    """Write the runs in the tool's format; the seconds that it took."""
    began = time.perf_counter()
    if tool == "fdl":
        make_runs(folder, runs, points)
        return time.perf_counter() - began
    rows = [
        {
            "name": f"run-{number:03}",
            "settings": {name: value for name, (value, _) in settings(number).items()},
            "loss": losses(number, points).tolist(),
        }
        for number in range(runs)
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as source:
        json.dump(rows, source)
        source.flush()
        began = time.perf_counter()
        subprocess.run(
            [programs / "python", WRITERS, tool, source.name, folder],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return time.perf_counter() - began


def forget(folder: Path) -> None:
    """Take the content of all files out of the system's cache."""
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pixels(png: bytes) -> np.ndarray:
    """The colours of a picture without interlacing, shape ``[height, width, channels]``."""
    place, data = 8, b""
    width = height = channels = 0
    while place < len(png):
        size, kind = int.from_bytes(png[place : place + 4]), png[place + 4 : place + 8]
        body = png[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            width, height = int.from_bytes(body[:4]), int.from_bytes(body[4:8])
            channels = {2: 3, 6: 4}[body[9]]
        elif kind == b"IDAT":
            data += body
        place += size + 12
    raw = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    made = np.zeros((height, width, channels), np.int64)
    above = np.zeros((width, channels), np.int64)
    for row in range(height):
        made[row] = above = _unfiltered(raw[row, 0], raw[row, 1:].reshape(width, channels), above)
    return made


def _unfiltered(kind: int, line: np.ndarray, above: np.ndarray) -> np.ndarray:
    """One row of a picture, whose bytes are differences to their neighbours."""
    line = line.astype(np.int64)
    if kind == 0:
        return line
    if kind == 1:
        return np.cumsum(line, axis=0) % 256
    if kind == 2:
        return np.asarray((line + above) % 256)
    made = np.zeros_like(line)
    left = corner = np.zeros(line.shape[1], np.int64)
    for place in range(len(line)):
        up = above[place]
        if kind == 3:
            guess = (left + up) // 2
        else:
            near = left + up - corner
            a, b, c = abs(near - left), abs(near - up), abs(near - corner)
            guess = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        made[place] = left = (line[place] + guess) % 256
        corner = up
    return made


def has_curve(browser: Browser) -> bool:
    """Whether the first chart of the page has something coloured."""
    box = browser.evaluate(_CHART)
    if not box:
        return False
    clip = dict(zip(("x", "y", "width", "height"), box, strict=True), scale=1)
    shot = browser.call("Page.captureScreenshot", format="png", clip=clip)
    seen = pixels(base64.b64decode(shot["data"]))[..., :3]
    return int((np.ptp(seen, axis=2) > 60).sum()) >= COLOURED


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def server(subject: Subject, programs: Path, runs: Path, cache: Path) -> Iterator[tuple[str, int]]:
    """The address of a tool's server and its process, until it is ended with all its children."""
    port = free_port()
    words = subject.serve(runs, port)
    env = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FLODL_CACHE_DIR": str(cache),
        "TRACKIO_DIR": str(runs),
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    child = subprocess.Popen(
        [str(programs / words[0]), *words[1:]],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}", child.pid
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def answers(address: str) -> bool:
    """Whether a server answers."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def until(
    holds: Callable[[], bool], what: str, pause: float = 0.05, patience: float = PATIENCE
) -> None:
    """Wait for something.

    Raises:
        TimeoutError: It does not happen.
    """
    end = time.monotonic() + patience
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(pause)


def memory(group: int) -> float:
    """MiB that the processes of a session use, shared pages counted once."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            rollup = (status.parent / "smaps_rollup").read_text()
        except OSError:
            continue
        if int(fields[3]) == group:
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line[:4] == "Pss:")
    return total / 1024


class Opening(NamedTuple):
    """What one opening of a page took.

    Attributes:
        curve: Seconds from the start of the server to the first curve.
        server: MiB of the server, some seconds later.
        page: MiB of the page's JavaScript.
        clicks: Clicks to the first curve.
        more: Clicks from there to the settings of the runs.
    """

    curve: float
    server: float
    page: float
    clicks: int
    more: int | None


def open_page(
    browser: Browser, subject: Subject, programs: Path, runs: Path, cache: Path
) -> Opening:
    """Start the server, open its page, and wait for the first curve."""
    browser.open("about:blank")
    browser.call("Network.clearBrowserCache")
    began = time.perf_counter()
    with server(subject, programs, runs, cache) as (address, child):
        until(lambda: answers(address), "the server answers", pause=0.02)
        browser.resize(1400, 900)
        browser.call("Page.navigate", url=address + subject.path)
        for script in subject.begin:
            until(partial(_is_true, browser, script), script)
        until(lambda: _seen(browser), "the first curve")
        curve = time.perf_counter() - began
        time.sleep(SETTLE_SECONDS)
        used = memory(child)
        browser.call("HeapProfiler.collectGarbage")
        heap = browser.call("Runtime.getHeapUsage")["usedSize"] / 2**20
        more: int | None = len(subject.differ)
        for script in subject.differ:
            until(partial(_is_true, browser, script), script)
        try:
            until(lambda: _names_settings(browser), "the settings", patience=SETTINGS_SECONDS)
        except TimeoutError:
            more = None
        browser.open("about:blank")
    return Opening(curve, used, heap, len(subject.begin), more)


def _seen(browser: Browser) -> bool:
    try:
        return has_curve(browser)
    except AssertionError:
        return False  # the page is being loaded


def _is_true(browser: Browser, script: str) -> bool:
    try:
        return bool(browser.evaluate(script))
    except AssertionError:
        return False


def _names_settings(browser: Browser) -> bool:
    try:
        text = browser.evaluate(_TEXT)
    except AssertionError:
        return False
    return all(name in text for name in SETTINGS)


class Measured(NamedTuple):
    """Openings of one subject, and what its store takes."""

    cold: list[Opening]
    warm: list[Opening]
    written: float
    size: int


def subjects_of(options: argparse.Namespace) -> dict[str, Subject]:
    """The subjects of this call."""
    return {name: SUBJECTS[name] for name in SUBJECTS if not options.only or name in options.only}


def measured(options: argparse.Namespace, home: Path) -> tuple[dict[str, Measured], list[str]]:
    """Write the runs of every tool, and open the pages in turns."""
    subjects = subjects_of(options)
    programs = {one.tool: environment_of(one.tool, options.peers) for one in subjects.values()}
    stores: dict[str, Path] = {}
    written: dict[str, float] = {}
    for name, subject in subjects.items():
        is_full = name == "fdl, full length"
        key = "full" if is_full else subject.tool
        stores[name] = home / key
        if not stores[name].exists():
            points = options.full_points if is_full else options.points
            took = write(subject.tool, programs[subject.tool], home / key, options.runs, points)
            written[key] = took
    binary = find()
    if binary is None:
        raise SystemExit("a Chromium is needed on the PATH")
    browser = Browser(binary, home / "profile")
    found: dict[str, Measured] = {}
    try:

        def once(name: str) -> tuple[Opening, Opening]:
            subject, cache = subjects[name], home / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            forget(stores[name])
            taken = (subject, programs[subject.tool], stores[name], cache)
            return open_page(browser, *taken), open_page(browser, *taken)

        openings = in_turns(list(subjects), once, options.rounds, warmup=0)
    finally:
        browser.close()
    for name, pairs in openings.items():
        size = sum(file.stat().st_size for file in stores[name].rglob("*") if file.is_file())
        key = "full" if name == "fdl, full length" else subjects[name].tool
        cold, warm = ([pair[place] for pair in pairs] for place in (0, 1))
        found[name] = Measured(cold, warm, written[key], size)
    versions = [version_of(tool, programs[tool]) for tool in programs]
    return found, versions


def rows_of(found: Mapping[str, Measured]) -> list[list[str]]:
    """The table of figures."""
    rows = []
    for name, one in found.items():
        cold = statistics.median(opening.curve for opening in one.cold)
        warm = statistics.median(opening.curve for opening in one.warm)
        first = one.warm[0]
        both = [*one.cold, *one.warm]
        more = "not found" if first.more is None else str(first.more)
        rows.append(
            [
                name,
                f"{cold:.1f}",
                BARS[name].verdict(cold) if name in BARS else "",
                f"{warm:.1f}",
                f"{statistics.median(opening.server for opening in both):.0f}",
                f"{statistics.median(opening.page for opening in both):.0f}",
                str(first.clicks),
                more,
                f"{one.written:.0f}",
                f"{one.size / 1e6:.0f}",
            ]
        )
    return rows


HEADER = (
    "tool", "cold: s to the first curve", "bar", "warm: s", "server MiB", "page MiB",
    "clicks to the first curve", "clicks to the settings", "s to write", "MB on disk",
)  # fmt: skip


def load() -> str:
    """How busy the machine is besides this program."""
    return (
        f"Load of the machine at the beginning: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("runs_page", __doc__, rounds=2)
    parser.add_argument("--runs", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--points", type=int, default=1000, help="steps of each run")
    parser.add_argument("--full-points", type=int, default=FULL_POINTS, help="of fdl alone")
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="measure only these")
    parser.add_argument(
        "--peers",
        type=Path,
        default=user_cache() / "benchmark-peers",
        help="folder of the environments of the other tools (default: %(default)s)",
    )
    options = read_options(parser, argv, rounds=1, runs=12, points=50, full_points=2000)
    busy = load()
    with tempfile.TemporaryDirectory() as home:
        found, versions = measured(options, Path(home))
    intro = (
        f"{options.runs} runs of {options.points:,} steps, and of {options.full_points:,} for "
        f"*fdl, full length*; {options.rounds} rounds in turns, medians. "
        f"{', '.join(versions)}. {busy}"
    )
    text = page(
        options,
        "The page of many runs, beside other tools",
        intro,
        table(HEADER, rows_of(found)),
        NOTES,
        packages=(),
    )
    publish(text, options.output)


NOTES = """\
Cold: the content of all files was taken out of the system's cache, and the cache of fdl was empty.
Warm is the opening after it. The time begins with the start of the server, and includes it. A curve
is there when the first chart of the page has coloured pixels in a real Chromium.

Server: memory of all its processes. Page: the heap of its JavaScript after a garbage collection.
Clicks to the settings count from the page with curves, until the names of all settings are visible.
TensorBoard selects no run if there are more than 40, so one click selects all.

The files of fdl also hold configuration with origins, metrics by epoch and reports. The other tools
get the loss and the settings."""


if __name__ == "__main__":
    main()
