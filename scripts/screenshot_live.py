#!/usr/bin/env python3
"""Take a picture of the live page while a small model trains: ``screenshot_live.py out.png``.

Uses the browser of the page tests, so it needs Chromium or Chrome on PATH.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

from flodl.graph import FlowBuilder, Graph
from flodl.monitor import Monitor
from flodl.monitor.records import StepSeries
from tests.browser.chromium import NAMES, Browser, find

EPOCHS = 40
SEEN = 26  # epochs done when the picture is taken
STEPS = 60
SMOOTH = """(one => { one.value = 0.9; one.dispatchEvent(new Event("input")) })
(document.getElementById("smoothing"))"""
CONFIG = {
    "epochs": {"value": EPOCHS, "origin": "train/fdl.yml:8:13"},
    "lr": {"value": 0.003, "origin": "train/fdl.yml:9:9"},
    "batch_size": {"value": 64, "origin": "default"},
}


def spirals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points of two spirals and which one they are on; shapes ``[count, 2]`` and ``[count]``."""
    label = torch.randint(0, 2, (count,), generator=generator)
    turn = torch.rand(count, generator=generator).sqrt() * 3 * math.pi
    angle = turn + math.pi * label
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 10
    return points + 0.02 * torch.randn(count, 2, generator=generator), label


def model() -> Graph:
    """A classifier with a residual block, so that the drawing has something to show."""
    return (
        FlowBuilder.from_(nn.Linear(2, 48))
        .tag("stem")
        .through(nn.GELU())
        .also(nn.Linear(48, 48))
        .tag("residual")
        .through(nn.LayerNorm(48))
        .through(nn.GELU())
        .through(nn.Linear(48, 2))
        .tag("head")
        .label("spirals")
        .build()
    )


def train(monitor: Monitor, graph: Graph) -> Iterator[int]:
    """Train; yields after every epoch."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(graph.parameters(), lr=0.003)
    held_out, expected = spirals(512, generator)
    spent = dict.fromkeys(("data", "forward", "backward", "optimizer", "evaluation"), 0.0)
    clock = time.perf_counter()

    def lap(account: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        spent[account], clock = spent[account] + now - clock, now

    for epoch in range(EPOCHS):
        began, hits = time.perf_counter(), 0
        losses: list[float] = []
        accuracies: list[float] = []
        norms: list[float] = []
        for _ in range(STEPS):
            points, label = spirals(64, generator)
            lap("data")
            scores = graph(points)
            loss = nn.functional.cross_entropy(scores, label)
            losses.append(loss.item())
            right = int((scores.argmax(1) == label).sum())
            hits += right
            accuracies.append(right / len(label))
            lap("forward")
            optimizer.zero_grad()
            loss.backward()
            lap("backward")
            norms.append(float(nn.utils.get_total_norm([p.grad for p in graph.parameters()])))
            optimizer.step()
            lap("optimizer")
        with torch.no_grad():
            scores = graph(held_out)
        metrics = {
            "loss": sum(losses) / STEPS,
            "val_loss": nn.functional.cross_entropy(scores, expected).item(),
            "accuracy": hits / STEPS / 64,
            "val_accuracy": (scores.argmax(1) == expected).float().mean().item(),
        }
        lap("evaluation")
        steps = range(epoch * STEPS, (epoch + 1) * STEPS)
        curves = {"loss": losses, "accuracy": accuracies, "grad_norm": norms}
        monitor.log_steps([StepSeries(name, steps, values) for name, values in curves.items()])
        monitor.log_ledger(spent)
        monitor.log(epoch, time.perf_counter() - began, metrics)
        yield epoch
        clock = time.perf_counter()


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Take a picture of the live page.")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    parser.add_argument("--width", type=int, default=1400, help="pixels (default 1400)")
    parser.add_argument("--height", type=int, default=1240, help="pixels (default 1240)")
    parser.add_argument("--dark", action="store_true", help="dark colours instead of light ones")
    wanted = parser.parse_args()
    binary = find()
    if binary is None:
        sys.exit(f"error: no browser on PATH; install one of {', '.join(NAMES)}")
    wanted.picture.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    graph = model()
    graph.enable_profiling()
    monitor = Monitor(EPOCHS, terminal=False)
    monitor.set_metadata({"config": CONFIG, "environment": {"torch": str(torch.__version__)}})
    monitor.watch_profiled(graph)
    url = monitor.serve(0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(binary, Path(profile))
        try:
            browser.open(url, width=wanted.width, height=wanted.height, dark=wanted.dark)
            for epoch in train(monitor, graph):
                if epoch + 1 == SEEN:
                    break
                time.sleep(0.2)  # a model of this size would be done before anybody looks
            browser.evaluate("page.choices.set({axis: 'step'})")
            browser.evaluate(SMOOTH)
            rows = "document.querySelectorAll('#epochs tbody tr').length"
            browser.wait_for(f"{rows} === {SEEN}")
            browser.settle()
            browser.screenshot(wanted.picture)
        finally:
            browser.close()
            monitor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
