"""What the live page costs: frames in the browser, and steps in the training behind it.

Frames: Chromium shows a run with so many points per curve while new ones stream in. The times
between its animation frames are taken at rest, under a moving mouse and while zooming. An empty
page gets the same events in the same browser right after. This shows what the page itself costs.
Steps: a small training is timed block by block with
nobody watching, with one browser that was stopped in the middle (SIGSTOP), and with 200 clients
that read; blocks are interleaved.

    python -m benchmarks.page [--rounds 20] [--output docs/benchmarks/page.md]

The tables are kept as JSON beside the page. A call without points measures no frames, and a call
with 0 rounds no steps; the page then shows what was kept:

    python -m benchmarks.page --points --clients 300 --output docs/benchmarks/page.md
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import nn

from benchmarks.measure import (
    Bar,
    command_line,
    environment,
    interleaved,
    median_ratio,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from benchmarks.rows import Kept, Row
from flodl.monitor import Monitor
from flodl.monitor.records import StepSeries
from tests.browser.chromium import Browser, find

POINTS = (1_000, 10_000, 100_000, 1_000_000)
CLIENTS = 200
CURVES = ("loss", "accuracy", "grad_norm")

# Reads the stream with so many connections from one process, so that the readers cost no page.
READER = """
import selectors, socket, sys
selector = selectors.DefaultSelector()
for _ in range(int(sys.argv[2])):
    channel = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    channel.sendall(f"GET {sys.argv[3]}events HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode())
    selector.register(channel, selectors.EVENT_READ)
print("ready", flush=True)
while selector.get_map():
    for key, _ in selector.select():
        if not key.fileobj.recv(65536):
            selector.unregister(key.fileobj)
"""

SECONDS = 3.0
NEVER = "Not measured yet"
SLOWER = Bar(1.01, form=".3f")
EMPTY = "data:text/html,<!doctype html><title>empty</title>"

PLOT = """(({ left, top, width, height }) => [left, top + height / 2, width])(
  document.querySelector(".plot").getBoundingClientRect())"""

RECORD = """(() => {
  const stamps = (window.stamps = []);
  const next = (now) => {
    stamps.push(now);
    if (window.stamps === stamps) requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})()"""

INTERVALS = """(() => {
  const { stamps } = window;
  window.stamps = null;
  return stamps.slice(1).map((stamp, index) => stamp - stamps[index]);
})()"""

ZOOM = """(async () => {
  const chart = page.charts[0];
  const curve = () => page.record.curves.get("loss");
  curve().detail = null; // of an earlier zoom
  const start = performance.now();
  chart.focus.zoom([%d, %d]);
  while (!curve().detail && performance.now() - start < 5000)
    await new Promise(done => setTimeout(done, 1));
  const taken = performance.now() - start;
  chart.focus.zoom(null);
  return taken;
})()"""

# A canvas keeps what it was told and paints it later; reading a pixel makes it paint at once.
REDRAW = """((painted) => {
  const [chart] = page.charts;
  const taken = Array.from({ length: 21 }, () => {
    const start = performance.now();
    chart.show(chart.title.textContent, chart.series);
    if (painted) chart.card.querySelector("canvas").getContext("2d").getImageData(0, 0, 1, 1);
    return performance.now() - start;
  });
  return taken.sort((a, b) => a - b)[10];
})(%s)"""


def piece(start: int, count: int) -> list[StepSeries]:
    """The next points of every curve."""
    steps = range(start, start + count)
    noise = torch.rand(count).tolist()
    return [StepSeries(name, steps, noise) for name in CURVES]


class Viewer:
    """Somebody in front of a page: leaves it alone, moves the mouse over it, zooms."""

    def __init__(self, browser: Browser, plot: tuple[float, float, float]) -> None:
        self._browser = browser
        self._left, self._middle, self._width = plot

    def rest(self, _turn: int) -> None:
        """Leave the page alone."""
        time.sleep(0.05)

    def hover(self, turn: int) -> None:
        """Move the mouse a little further."""
        x = self._left + 7 * turn % self._width
        self._browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=self._middle)
        time.sleep(0.01)

    def zoom(self, turn: int) -> None:
        """Zoom in or out again, four times a second; an empty page has nothing to zoom."""
        part = "null" if turn % 2 else "[last / 4, last / 2]"
        self._browser.evaluate(
            f"""if (window.page) {{
              const {{ focus, xs }} = page.charts[0];
              const last = xs[xs.length - 1];
              focus.zoom({part});
            }}"""
        )
        time.sleep(0.25)

    def intervals(self) -> dict[str, list[float]]:
        """Sorted milliseconds between animation frames, by what the viewer does."""
        state = self._browser.evaluate("document.visibilityState")
        assert state == "visible", f"a {state} page gets few frames, whatever it draws"
        taken = {}
        gestures = {"at rest": self.rest, "hovering": self.hover, "zooming": self.zoom}
        for name, act in gestures.items():
            self._browser.evaluate(RECORD)
            end = time.monotonic() + SECONDS
            for turn in itertools.count():
                act(turn)
                if time.monotonic() > end:
                    break
            taken[name] = sorted(self._browser.evaluate(INTERVALS))
        return taken


def frames(browser: Browser, points: int) -> tuple[list[list[str]], list[str]]:
    """Rows of the first table, and the row of the second."""
    with ExitStack() as stack:
        monitor = Monitor(10, terminal=False)
        stack.callback(monitor.close)
        stack.callback(monitor.finish)
        monitor.log_steps(piece(0, points))
        browser.open(monitor.serve(0))
        browser.wait_for("page.connection === 'live'")
        feed(stack, monitor, points)
        viewer = Viewer(browser, tuple(browser.evaluate(PLOT)))
        page = viewer.intervals()
        browser.evaluate("page.charts[0].focus.zoom(null)")
        redraw, painted = (browser.evaluate(REDRAW % flag) for flag in ("false", "true"))
        zoom = browser.evaluate(ZOOM % (points // 2, points // 2 + max(10, points // 100)))
        browser.open(EMPTY)
        empty = viewer.intervals()
    rows = []
    for name, times in page.items():
        ratio = statistics.median(times) / statistics.median(empty[name])
        cells = [*_middle_and_tail(times), *_middle_and_tail(empty[name])]
        rows.append([f"{points:,}", name, *cells, f"{ratio:.2f}"])
    return rows, [f"{points:,}", *(f"{one:.1f}" for one in (redraw, painted, zoom))]


def _middle_and_tail(times: list[float]) -> tuple[str, str]:
    """Median and 95 % of sorted times."""
    return f"{statistics.median(times):.1f}", f"{times[int(0.95 * len(times))]:.1f}"


def feed(stack: ExitStack, monitor: Monitor, start: int) -> None:
    """Let new points stream in, ten times a second, until the stack is closed."""
    stop = threading.Event()

    def run() -> None:
        step = start
        while not stop.wait(0.1):
            monitor.log_steps(piece(step, 500))
            step += 500

    thread = threading.Thread(target=run)
    thread.start()
    stack.callback(thread.join)
    stack.callback(stop.set)


class Training:
    """A small training that logs as a Trainer does: steps once a second, one epoch per block."""

    def __init__(self, seconds: float) -> None:
        torch.manual_seed(0)
        self._seconds = seconds
        self.monitor = Monitor(1_000_000, terminal=False)
        self.url = self.monitor.serve(0)
        self._model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs, self._targets = torch.randn(64, 64), torch.randint(0, 10, (64,))
        self._step = self._epoch = 0
        self.steps = 200
        start = time.perf_counter()
        self()
        self.steps = max(1, int(200 * seconds / (time.perf_counter() - start)))

    def __call__(self) -> None:
        """Train one block."""
        losses = []
        for _ in range(self.steps):
            loss = nn.functional.cross_entropy(self._model(self._inputs), self._targets)
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            losses.append(loss.item())
        steps = range(self._step, self._step + self.steps)
        self.monitor.log_steps([StepSeries(name, steps, losses) for name in CURVES])
        self.monitor.log(self._epoch, self._seconds, {"loss": losses[-1]})
        self._step += self.steps
        self._epoch += 1


def readers(stack: ExitStack, url: str, count: int) -> subprocess.Popen[bytes]:
    """Start a process with `count` connections to the event stream."""
    address = urlsplit(url)
    argv = [sys.executable, "-c", READER, str(address.port), str(count), address.path]
    process = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE))
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def watched(options: argparse.Namespace) -> list[list[str]]:
    """Rows of the second table."""
    with ExitStack() as stack:
        subjects: dict[str, Callable[[], object]] = {}
        clients = f"{options.clients} clients"
        trainings = {
            name: Training(options.block) for name in ("nobody", "one stopped client", clients)
        }
        for name, training in trainings.items():
            stack.callback(training.monitor.close)
            training.steps = trainings["nobody"].steps
            subjects[name] = training
        stopped = readers(stack, trainings["one stopped client"].url, 1)
        os.kill(stopped.pid, signal.SIGSTOP)
        readers(stack, trainings[clients].url, options.clients)
        seconds = interleaved(subjects, options.rounds)
    block = trainings["nobody"].steps
    return [
        [
            name,
            f"{1e6 * statistics.median(taken) / block:.2f}",
            f"{median_ratio(taken, seconds['nobody']):.3f}",
            spread(ratios(taken, seconds["nobody"]), ".3f"),
        ]
        for name, taken in seconds.items()
    ]


def pages(points: Sequence[int]) -> tuple[list[list[str]], list[list[str]]]:
    """Rows of the first two tables; none where there is no browser."""
    if not points:
        return [], []
    binary = find()
    if binary is None:
        sys.stderr.write("page: no browser on PATH, so no frames are measured\n")
        return [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(binary, Path(profile))
        try:
            measured = [frames(browser, count) for count in points]
        finally:
            browser.close()
    return [row for rows, _ in measured for row in rows], [row for _, row in measured]


def frames_part(row: Row) -> list[str]:
    """The section about frames."""
    drawn = table(
        ["points per curve", "while", "frame ms", "95 %", "empty ms", "95 %", "of empty"],
        row["shown"],
    )
    work = table(["points per curve", "redraw ms", "painted ms", "zoom ms"], row["worked"])
    return [
        "## Points against frame time",
        f"{row['where']}. {len(CURVES)} curves, 5,000 new points per second and curve. Times "
        f"between animation frames over {SECONDS:g} s in headless Chromium, median and 95 %. "
        "*Empty* is a page without content in the same browser, right after, with the same mouse "
        "and the same run beside it. Its frames are the lower limit.",
        drawn,
        "*Redraw* is the page's own work for one chart. *Painted* is the time until the canvas "
        "has its pixels. *Zoom* goes to a hundredth of the run, from the call to the points of "
        "that range, fetched from the server.",
        work,
    ]


def steps_part(row: Row | None) -> list[str]:
    """The section about steps."""
    heading = "## Step time against who watches"
    if row is None:
        return [heading, NEVER]
    rows = [
        [who, step, ratio, wide, "" if who == "nobody" else SLOWER.verdict(float(ratio))]
        for who, step, ratio, wide in row["rows"]
    ]
    trained = table(["who watches", "µs per step", "of nobody", "spread", "bar"], rows)
    return [
        heading,
        f"{row['where']}. A small MLP on one thread, blocks of about {row['block']:g} s, each with "
        "one hand-over of its steps and one epoch; interleaved, median of "
        f"{row['rounds']} blocks. The stopped client is a process that asked for the event stream "
        f"and was halted (SIGSTOP). The {row['clients']} clients read, on the same machine.",
        trained,
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("page", __doc__, rounds=20)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--points", type=int, nargs="*", default=list(POINTS), help="per curve")
    parser.add_argument("--block", type=float, default=1.0, help="seconds of a block of steps")
    options = read_options(parser, argv, rounds=1, clients=2, points=[], block=0.01)
    torch.set_num_threads(1)
    kept = Kept.beside(options.output)
    now = environment("torch", "flodl")
    shown, worked = pages(options.points)
    if shown:
        kept.rows["frames"] = {"where": now, "shown": shown, "worked": worked}
    if options.rounds:
        facts = {name: vars(options)[name] for name in ("block", "clients", "rounds")}
        kept.rows["steps"] = {"where": now, **facts, "rows": watched(options)}
    kept.write()
    text = page(
        options,
        "The live page: frames and steps",
        "What the page draws, and what it costs the training behind it.",
        *frames_part(kept.rows.get("frames", {"where": NEVER, "shown": [], "worked": []})),
        *steps_part(kept.rows.get("steps")),
        packages=("torch", "flodl"),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
