"""Open a tool's page in a real browser: the first curve, memory, and the settings of the runs."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from benchmarks.runs_page_subjects import SILENT, Click, Subject
from tests.browser.chromium import Browser

T = TypeVar("T")
PATIENCE = 120.0
SETTINGS = ("lr", "batch_size", "optimizer", "width", "dropout", "seed")
VALUES = re.compile(r"\b(adam|sgd|lion)\b|\bMixed\b")
"""Values of the setting ``optimizer``, or Aim's word for several values in one group."""
SETTLE_SECONDS = 3.0
SETTINGS_SECONDS = 10.0
CLICK_SECONDS = 15.0
COLOURED = 150
"""Pixels with a colour that make a curve; grids and letters are grey."""

# Looks into shadow roots, and finds the first chart: a large canvas, or a drawing with long paths.
_CHART = """(() => {
  const found = [];
  const look = (node) => {
    for (const one of node.querySelectorAll("*")) {
      if (one.shadowRoot) look(one.shadowRoot);
      const name = one.tagName.toLowerCase();
      if (name === "canvas" || (name === "svg" && one.querySelector("path"))) {
        const box = one.getBoundingClientRect();
        const seen = box.right > 0 && box.bottom > 0 && box.top < innerHeight - 100;
        if (seen && box.width >= 120 && box.height >= 120) found.push(box);
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


# Scrolls every box one part further, and back to its start after the last part.
_SCROLL = """((down) => {
  const next = (at, size, whole) => (at + size >= whole - 2 ? 0 : at + 0.8 * size);
  const look = (node) => {
    for (const one of node.querySelectorAll("*")) {
      if (one.shadowRoot) look(one.shadowRoot);
      if (one.clientWidth < 100 || one.clientHeight < 60) continue;
      const style = getComputedStyle(one);
      const goes = (overflow) => overflow === "auto" || overflow === "scroll";
      if (!down && one.scrollWidth > one.clientWidth + 4 && goes(style.overflowX)) {
        one.scrollLeft = next(one.scrollLeft, one.clientWidth, one.scrollWidth);
      }
      if (down && one.scrollHeight > one.clientHeight + 4 && goes(style.overflowY)) {
        one.scrollTop = next(one.scrollTop, one.clientHeight, one.scrollHeight);
      }
    }
  };
  look(document);
})"""


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


def curve_seen(browser: Browser) -> float | None:
    """When the picture was taken if the first chart has something coloured; else None.

    Looking for colours takes part of a second, which is not counted.
    """
    box = browser.evaluate(_CHART)
    if not box:
        return None
    clip = dict(zip(("x", "y", "width", "height"), box, strict=True), scale=1)
    shot = browser.call("Page.captureScreenshot", format="png", clip=clip)
    taken = time.perf_counter()
    seen = pixels(base64.b64decode(shot["data"]))[..., :3]
    return taken if int((np.ptp(seen, axis=2) > 60).sum()) >= COLOURED else None


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def environment_for(programs: Path, cache: Path) -> dict[str, str]:
    """The environment of a tool: its programs first, and a cache of its own."""
    return {
        **os.environ,
        **SILENT,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FLODL_CACHE_DIR": str(cache),
    }


@contextmanager
def server(subject: Subject, programs: Path, runs: Path, cache: Path) -> Iterator[tuple[str, int]]:
    """The address of a tool's server and its process, until it is ended with all its children."""
    port = free_port()
    words = subject.serve(runs, port)
    own = {"TRACKIO_DIR": str(runs), "GRADIO_SERVER_PORT": str(port)}
    child = subprocess.Popen(
        [str(programs / words[0]), *words[1:]],
        env=environment_for(programs, cache) | own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}", child.pid
    finally:
        _end(child)


def _end(leader: subprocess.Popen[bytes]) -> None:
    """End all processes of a session, also those that one of them starts meanwhile."""
    while left := members(leader.pid):
        for one in left:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)
    leader.wait()


def answers(address: str) -> bool:
    """Whether a server answers."""
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def until(
    holds: Callable[[], T | None], what: str, pause: float = 0.05, patience: float = PATIENCE
) -> T:
    """Wait for something, and return it.

    Raises:
        TimeoutError: It does not happen.
    """
    end = time.monotonic() + patience
    while not (found := holds()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(pause)
    return found


def members(session: int) -> list[int]:
    """The running processes of a session."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, belongs, *_ = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(belongs) == session and state != "Z":
            found.append(int(status.parent.name))
    return found


def memory(session: int) -> float:
    """MiB that the processes of a session use, shared pages counted once."""
    total = 0
    for one in members(session):
        with suppress(OSError):
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
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
        for click in subject.begin:
            until(partial(_is_true, browser, click.script), f"a click on {click.name}")
        curve = until(lambda: _seen(browser), "the first curve") - began
        time.sleep(SETTLE_SECONDS)
        used = memory(child)
        browser.call("HeapProfiler.collectGarbage")
        heap = browser.call("Runtime.getHeapUsage")["usedSize"] / 2**20
        more = clicks_to_settings(browser, subject.differ)
        browser.open("about:blank")
    return Opening(curve, used, heap, len(subject.begin), more)


def _seen(browser: Browser) -> float | None:
    try:
        return curve_seen(browser)
    except AssertionError:
        return None  # the page is being loaded


def _is_true(browser: Browser, script: str) -> bool:
    try:
        return bool(browser.evaluate(script))
    except AssertionError:
        return False


def clicks_to_settings(browser: Browser, clicks: Sequence[Click]) -> int | None:
    """How many of these clicks show all settings to a reader who scrolls.

    Returns:
        None if they do not appear.
    """
    if _shows_settings(browser):
        return 0
    for count, click in enumerate(clicks, 1):
        try:
            until(partial(_clicked, browser, click), click.name, 0.3, CLICK_SECONDS)
        except TimeoutError:
            return None
        if _shows_settings(browser):
            return count
    return None


def _clicked(browser: Browser, click: Click) -> bool:
    """Whether it was there to be clicked; if not, everything is scrolled one part further."""
    if _is_true(browser, click.script):
        return True
    _is_true(browser, f"{_SCROLL}(false)")
    return False


def _shows_settings(browser: Browser) -> bool:
    """Whether the names of all settings and a value appear while everything is scrolled."""
    left, tells = set(SETTINGS), False
    end = time.monotonic() + SETTINGS_SECONDS
    turn = 0
    while (left or not tells) and time.monotonic() < end:
        time.sleep(0.3)
        try:
            text = browser.evaluate(_TEXT) or ""
            turn += 1
            browser.evaluate(f"{_SCROLL}({json.dumps(turn % 5 == 0)})")
        except AssertionError:
            continue  # the page is being loaded
        left = {name for name in left if not re.search(rf"(?<![a-zA-Z]){name}(?![a-zA-Z])", text)}
        tells = tells or bool(VALUES.search(text))
    return tells and not left
