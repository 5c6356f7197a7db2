"""Ten networks: flodl's engine beside plain PyTorch and beside PyTorch tuned by hand.

Every way of training runs in a process of its own; the processes take turns, a few steps at a time,
so that drift of the machine hits all alike. A run measures one column of one network in a few
minutes. Rows are kept as JSON beside the page, so the page can be filled in several runs.

    python -m benchmarks.ten_models --only mlp --output docs/benchmarks/ten_models.md
    python -m benchmarks.ten_models --only mlp --part pure --output docs/benchmarks/ten_models.md
    python -m benchmarks.ten_models --no-routing --output docs/benchmarks/ten_models.md
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors.torch import load_file

from benchmarks.measure import (
    command_line,
    environment,
    in_turns,
    median_ratio,
    publish,
    ratios,
    read_options,
    spread,
)
from benchmarks.rows import Kept
from benchmarks.ten_models_networks import networks
from benchmarks.ten_models_page import Row, page
from benchmarks.ten_models_subject import BY_HAND, TOTAL_STEPS
from benchmarks.ten_models_tuned import Recipe, variants
from fdl.plan.heap import TUNABLES_VARIABLE, tunables

TURN_SECONDS = 1.5  # what one turn of the slowest should take, unless --steps says otherwise
COLUMNS = {"auto": "flodl", "pure": "pure"}
"""Column -> the way of flodl that it measures."""

PARTS = (*COLUMNS, "agreement")
WARMUP = 3


class Player:
    """A subject in its process.

    Args:
        model: Name of the network.
        subject: What it trains, see ``make_subject``.
        options: Of the command line.
        kept_heap: As ``fdl`` starts a program that uses flodl.
    """

    def __init__(
        self, model: str, subject: str, options: argparse.Namespace, *, kept_heap: bool
    ) -> None:
        env = {name: value for name, value in os.environ.items() if name != TUNABLES_VARIABLE}
        if kept_heap:
            env[TUNABLES_VARIABLE] = tunables()
        # Every process decides for itself, and the user's own decisions stay as they are.
        self._cache = tempfile.TemporaryDirectory(prefix="ten-models-")
        env["FLODL_CACHE_DIR"] = self._cache.name
        command = [sys.executable, "-m", "benchmarks.ten_models_subject", model, subject]
        command += ["--device", options.device, "--engine", options.engine]
        command += ["--total-steps", str(options.total_steps)]
        command += ["--threads", str(options.threads)] if options.threads else []
        command += ["--no-routing"] if options.no_routing else []
        command += ["--small"] if options.small else []
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"`{' '.join(self._process.args)}` ended with status {self._process.wait()}"  # type: ignore[arg-type]
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def seconds(self, command: str) -> float:
        """Send a command that takes time, and return its seconds."""
        return float(self.ask(command)["seconds"])

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self._process.communicate()  # closes the pipes, which ends it
        self._cache.cleanup()


def by_hand(model: str, options: argparse.Namespace, *, compiling: bool) -> dict[str, Recipe]:
    """Return the variants by hand of a column, by the name of their subject."""
    recipes = variants(model, routing=not options.no_routing, compiling=True)
    named = {f"{BY_HAND}{number}": recipe for number, recipe in enumerate(recipes)}
    return {name: recipe for name, recipe in named.items() if compiling or not recipe.compiled}


def play(model: str, column: str, options: argparse.Namespace) -> Row:
    """Measure one column of one network: the beginnings one after the other, then turns."""
    ours = COLUMNS[column]
    recipes = by_hand(model, options, compiling=column == "pure")
    with ExitStack() as stack:

        def player(name: str, *, kept_heap: bool) -> Player:
            return stack.enter_context(Player(model, name, options, kept_heap=kept_heap))

        players = {"eager": player("eager", kept_heap=False), ours: player(ours, kept_heap=True)}
        players |= {name: player(name, kept_heap=r.heap) for name, r in recipes.items()}
        eager = players["eager"]
        eager.ask(f"train {WARMUP}")
        steps = options.steps or _turn(eager)
        begun = {
            name: _begin(each, eager, steps) for name, each in players.items() if name != "eager"
        }
        seconds = in_turns(
            list(players), lambda name: players[name].seconds(f"train {steps}"), options.rounds
        )
        report = players[ours].ask("report")
    step = {name: median_ratio(each, seconds["eager"]) for name, each in seconds.items()}
    total = {name: _total(begun[name], step[name]) for name in begun}
    hands = {str(recipe): total[name] for name, recipe in recipes.items()}
    return {
        "ms": statistics.median(seconds["eager"]) / steps * 1e3,
        "step": step[ours],
        "spread": spread(ratios(seconds[ours], seconds["eager"])),
        "total": total[ours],
        "begin_steps": begun[ours]["steps"],
        "by_hand": hands,
        "by_hand_step": {str(recipe): step[name] for name, recipe in recipes.items()},
        "report": report,
        "steps": steps,
        "rounds": options.rounds,
        "environment": environment("torch"),
    }


def _turn(eager: Player) -> int:
    """Steps of a turn."""
    return max(1, min(50, round(TURN_SECONDS / eager.seconds("train 1"))))


def _begin(player: Player, eager: Player, steps: int) -> Row:
    """Train until nothing is prepared or tried out any longer.

    Returns:
        ``steps``, and ``cost``: what they took, in steps of plain PyTorch just before and after.
    """
    before = eager.seconds(f"train {steps}") / steps
    found = player.ask(f"settle {WARMUP}")
    after = eager.seconds(f"train {steps}") / steps
    return {"steps": found["steps"], "cost": found["seconds"] / ((before + after) / 2)}


def _total(begun: Row, step: float) -> float:
    """Time of a training of ``TOTAL_STEPS``, as a ratio to plain PyTorch."""
    rest: float = (TOTAL_STEPS - begun["steps"]) * step
    return float(begun["cost"] + rest) / TOTAL_STEPS


def agreement(model: str, options: argparse.Namespace) -> Row:
    """Train plainly, by hand and with flodl for equally many steps, and compare.

    Returns:
        ``steps``, and for flodl and for each variant by hand that does not compile the relative
        differences of loss and weights to plain PyTorch.
    """
    recipes = by_hand(model, options, compiling=False)
    heaps = {"flodl": True, "eager": False, **{name: one.heap for name, one in recipes.items()}}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        players = {
            name: stack.enter_context(Player(model, name, options, kept_heap=kept))
            for name, kept in heaps.items()
        }
        steps = int(players["flodl"].ask(f"settle {options.agreement}")["steps"])
        weights, losses = {}, {}
        for name, player in players.items():
            if name != "flodl":
                player.ask(f"train {steps}")
            losses[name] = player.ask("loss")["loss"]
            player.ask(f"weights {Path(folder) / name}")
            weights[name] = load_file(Path(folder) / name)["weights"]
    plain = weights["eager"]

    def apart(name: str) -> Row:
        weight = (weights[name] - plain).abs().max() / plain.abs().max()
        loss = abs(losses[name] - losses["eager"]) / abs(losses["eager"])
        return {"loss": loss, "weights": float(weight)}

    drift = {str(recipe): apart(name) for name, recipe in recipes.items()}
    return {"steps": steps, "flodl": apart("flodl"), "by_hand": drift}


def place(kept: Kept, mode: str, name: str, part: str, row: Row) -> None:
    """Replace one row of a network, and write the file, so that an interrupted run has it."""
    kept.rows.setdefault(mode, {}).setdefault(name, {})[part] = row
    kept.write()


def options_from(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line("ten_models", __doc__, rounds=5)
    parser.add_argument("--only", nargs="+", choices=list(networks()), default=list(networks()))
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--steps", type=int, help="steps of a turn; default: about 1.5 s of eager")
    parser.add_argument(
        "--agreement", type=int, default=10, help="fewest steps before losses compare"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-routing", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny sizes: to try the benchmark")
    parser.add_argument(
        "--page-only", action="store_true", help="write the page from the rows that are kept"
    )
    parser.set_defaults(total_steps=TOTAL_STEPS)
    small = {"only": ["mlp"], "part": ["auto", "agreement"], "engine": "eager"}
    options = read_options(parser, argv, rounds=1, steps=1, agreement=2, small=True, **small)
    if options.page_only:
        options.only = []
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    options = options_from(argv)
    mode = "no_routing" if options.no_routing else "routing"
    kept = Kept.beside(options.output)
    for name in options.only:
        for part in options.part:
            row = agreement(name, options) if part == "agreement" else play(name, part, options)
            told = {key: row[key] for key in ("step", "total", "by_hand", "flodl") if key in row}
            sys.stderr.write(f"{name}, {part}: {told}\n")
            place(kept, mode, name, part, row)
    command = options.command.replace(" --page-only", "")
    publish(page(kept.rows, command), options.output)


if __name__ == "__main__":
    main()
