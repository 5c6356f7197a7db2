"""Ten networks: flodl's engine beside plain PyTorch, PyTorch tuned by hand, and torch.compile.

Every way of training runs in a process of its own; the processes take turns, a few steps at a time,
so that drift of the machine hits all alike. Rows are kept as JSON beside the page: a run with
``--models`` measures only those again.

    python -m benchmarks.ten_models --output docs/benchmarks/ten_models.md
    python -m benchmarks.ten_models --pure-step --output docs/benchmarks/ten_models.md
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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors.torch import load_file

from benchmarks.measure import (
    Bar,
    command_line,
    environment,
    in_turns,
    median_ratio,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from benchmarks.ten_models_networks import networks
from benchmarks.ten_models_subject import SUBJECTS, TOTAL_STEPS
from fdl.planning.heap import KEPT_HEAP, TUNABLES_VARIABLE

TURN_SECONDS = 1.5  # what one turn of the slowest should take, unless --steps says otherwise
BARS = {
    "mlp": Bar(0.52),
    "residual_tower": Bar(0.52),
    "iterative_refine": Bar(0.52),
    "convnet": Bar(0.6),
}
NO_SLOWER = Bar(1.0)
LOSS = Bar(1e-4, form="g")
OVER_TUNED = Bar(1.03)
ROUTED, UNROUTED = Bar(0.58), Bar(0.95)
COMPARED = ("eager", "fused", "flodl", "pure")
"""Ways whose losses and weights are compared; tuning by hand and torch.compile change modules."""

WARMUP = 3
Row = dict[str, Any]


class Player:
    """A subject in its process.

    Args:
        model: Name of the network.
        subject: One of ``SUBJECTS``.
        options: Of the command line.
    """

    def __init__(self, model: str, subject: str, options: argparse.Namespace) -> None:
        env = {name: value for name, value in os.environ.items() if name != TUNABLES_VARIABLE}
        if options.memory == "kept":
            env[TUNABLES_VARIABLE] = ":".join(f"{key}={value}" for key, value in KEPT_HEAP.items())
        # Every process decides for itself, and the user's own decisions stay as they are.
        self._cache = tempfile.TemporaryDirectory(prefix="ten-models-")
        env["FLODL_CACHE_DIR"] = self._cache.name
        command = [sys.executable, "-m", "benchmarks.ten_models_subject", model, subject]
        command += ["--device", options.device, "--engine", options.engine]
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

    def __enter__(self) -> Player:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._cache.cleanup()


def play(model: str, options: argparse.Namespace) -> Row:
    """Measure one network: agreement first, then turns."""
    with ExitStack() as stack:
        players = {
            name: stack.enter_context(Player(model, name, options)) for name in options.subjects
        }
        compared = {name: player for name, player in players.items() if name in COMPARED}
        # Compilation by hand only warms up. An engine trains until it has decided.
        settled = {
            name: player.ask(f"settle {options.agreement if name in compared else WARMUP}")
            for name, player in players.items()
        }
        first = max(settled[name]["steps"] for name in compared)
        for name, player in compared.items():
            player.ask(f"train {first - settled[name]['steps']}")
        losses = {name: player.ask("loss")["loss"] for name, player in compared.items()}
        weights = _weights(compared)
        steps = options.steps or _turn(players["eager"])
        seconds = in_turns(list(players), lambda name: _train(players[name], steps), options.rounds)
        reports = {name: player.ask("report") for name, player in players.items()}
    total = {name: _total(settled[name], seconds[name], steps) for name in players}
    return {
        "ms": {name: statistics.median(each) / steps * 1e3 for name, each in seconds.items()},
        "ratio": {name: median_ratio(each, seconds["eager"]) for name, each in seconds.items()},
        "over_tuned": median_ratio(seconds["flodl"], seconds["tuned"])
        if {"flodl", "tuned"} <= set(seconds)
        else None,
        "spread": {name: spread(ratios(s, seconds["eager"])) for name, s in seconds.items()},
        "total": {name: each / total["eager"] for name, each in total.items()},
        "loss": losses,
        "weights": weights,
        "settled": {name: found["steps"] for name, found in settled.items()},
        "report": reports,
        "steps": steps,
        "rounds": options.rounds,
        "memory": options.memory,
        "environment": environment("torch"),
    }


def _turn(eager: Player) -> int:
    """Steps of a turn."""
    seconds: float = eager.ask("train 1")["seconds"]
    return max(1, min(50, round(TURN_SECONDS / seconds)))


def _train(player: Player, steps: int) -> float:
    seconds: float = player.ask(f"train {steps}")["seconds"]
    return seconds


def _total(settled: Row, seconds: Sequence[float], steps: int) -> float:
    """Seconds of a training of ``TOTAL_STEPS``: the measured beginning, then the median step."""
    rest: float = (TOTAL_STEPS - settled["steps"]) * statistics.median(seconds) / steps
    return float(settled["seconds"]) + rest


def _weights(players: Mapping[str, Player]) -> dict[str, float]:
    """Largest difference of a weight to plain PyTorch, relative to the largest weight."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, player in players.items():
            path = str(Path(folder) / name)
            player.ask(f"weights {path}")
            found[name] = load_file(path)["weights"]
    plain = found["eager"]
    return {
        name: float((each - plain).abs().max() / plain.abs().max()) for name, each in found.items()
    }


EARLIER = (
    "Rows with an empty *total* were measured under the earlier rules, on the date in their line. "
    "Only *tuned*, *flodl* and *pure* had the kept heap. Losses were compared after 50 steps, "
    "before the decision of the engine."
)


def page(kept: Mapping[str, Mapping[str, Row]], command: str) -> str:
    """Write the page from all rows that are known."""
    intro = [
        "# Ten models",
        "Time per step as a ratio to plain PyTorch: below 1 is faster. *fused* is plain PyTorch "
        "with the fused Adam. *tuned* and *compile* are by hand, with the fused Adam; the list "
        "names the rest. *flodl* is engine auto after its decision, over plain Adam; *pure* is "
        "the same with `.pure_step()`, which lets it compile. All ways have float32, the same "
        "data, threads and heap. Each way runs in a process of its own, in turns. Medians over "
        "the rounds; *spread* is the middle 80 % for flodl. *total* is a training of "
        f"{TOTAL_STEPS} steps with flodl, with the trials of the engine. *loss* and *weights* are "
        "compared with plain PyTorch after the decision, at the same step. *loss* is the relative "
        "difference of the loss of the first batch. *weights* is the largest difference of a "
        "weight by the largest weight. *Drift* is the same for *fused*, an honest way too. "
        f"`{command}`",
    ]
    if any("total" not in row for rows in kept.values() for row in rows.values()):
        intro.append(EARLIER)
    titles = {
        "routing": "## Engine auto",
        "no_routing": "## Without routing of matrix products",
    }
    for mode, title in titles.items():
        if kept.get(mode):
            intro += [title, _mode_table(kept[mode]), _means(kept[mode], mode), _how(kept[mode])]
    return "\n\n".join(intro)


def _mode_table(rows: Mapping[str, Row]) -> str:
    header = ["model", "plain ms", "fused", "tuned", "compile", "flodl", "pure", "bar"]
    header += ["spread", "total", "flodl / tuned", "loss", "loss drift", "weights"]
    header += ["weights drift"]
    lines = [
        [
            name,
            f"{row['ms']['eager']:.4g}",
            *(_ratio(row["ratio"].get(subject)) for subject in SUBJECTS[1:]),
            _against(row["ratio"].get("flodl"), BARS.get(name, NO_SLOWER)),
            row.get("spread", {}).get("flodl", ""),
            _ratio(row.get("total", {}).get("flodl")),
            _ratio(row["over_tuned"]),
            _loss_difference(row["loss"], "flodl", LOSS),
            _loss_difference(row["loss"], "fused"),
            *(_power(row.get("weights", {}).get(way)) for way in ("flodl", "fused")),
        ]
        for name in networks()
        if (row := rows.get(name)) is not None
    ]
    return table(header, lines)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _power(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _against(reached: float | None, bar: Bar) -> str:
    return "" if reached is None else bar.verdict(reached)


def _loss_difference(losses: Mapping[str, float], way: str, bar: Bar | None = None) -> str:
    if way not in losses:
        return ""
    difference = abs(losses[way] - losses["eager"]) / abs(losses["eager"])
    return _power(difference) + (f", {bar.verdict(difference)}" if bar else "")


def _means(rows: Mapping[str, Row], mode: str) -> str:
    """One line of geometric means, with their bars."""
    means = {}
    for subject in SUBJECTS[1:]:
        ratios = [row["ratio"][subject] for row in rows.values() if subject in row["ratio"]]
        if ratios:
            means[subject] = statistics.geometric_mean(ratios)
    parts = [f"{subject} {mean:.3f}" for subject, mean in means.items()]
    against = [row["over_tuned"] for row in rows.values() if row["over_tuned"]]
    if against:
        over_tuned = statistics.geometric_mean(against)
        parts.append(f"flodl / tuned {over_tuned:.3f} (bar {OVER_TUNED.verdict(over_tuned)})")
    taken = [used for row in rows.values() for used in row["report"]["flodl"].get("tuning", [])]
    routed = mode == "routing" and any("oneDNN" in used for used in taken)
    where = "where products are routed" if routed else "without routing"
    bar = _against(means.get("flodl"), ROUTED if routed else UNROUTED)
    return (
        f"Geometric means over {len(rows)} models: {', '.join(parts)}; "
        f"bar for flodl {where}: {bar}."
    )


def _how(rows: Mapping[str, Row]) -> str:
    """What each way did, and where it was measured."""
    lines = []
    for name, row in rows.items():
        flodl = json.dumps(row["report"].get("flodl", {}))
        tuned = ", ".join(row["report"].get("tuned", {}).get("tuning", []))
        lines.append(
            f"- {name}: tuned: {tuned}; flodl: `{flodl}`; {row['rounds']} rounds of {row['steps']} "
            f"steps, heap {row['memory']}; {row['environment']}"
        )
    return "\n".join(lines)


def merged(path: Path | None, mode: str, rows: Mapping[str, Row]) -> dict[str, dict[str, Row]]:
    """Put new rows beside those of earlier runs, in the JSON next to the page."""
    kept: dict[str, dict[str, Row]] = {}
    if path is not None and path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
    kept.setdefault(mode, {}).update(rows)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return kept


def options_from(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line("ten_models", __doc__, rounds=9)
    parser.add_argument("--models", nargs="+", choices=list(networks()), default=list(networks()))
    usual = [subject for subject in SUBJECTS if subject != "pure"]
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=usual)
    parser.add_argument("--pure-step", action="store_true", help="measure .pure_step() as well")
    parser.add_argument("--steps", type=int, help="steps of a turn; default: about 1.5 s of eager")
    parser.add_argument(
        "--agreement", type=int, default=50, help="fewest steps before losses compare"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", choices=("kept", "default"), default="kept")
    parser.add_argument("--no-routing", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny sizes: to try the benchmark")
    parser.add_argument(
        "--page-only", action="store_true", help="write the page from the rows that are kept"
    )
    small = {"models": ["mlp"], "subjects": ["eager", "fused", "flodl"], "engine": "eager"}
    options = read_options(parser, argv, rounds=1, steps=1, agreement=2, small=True, **small)
    if options.page_only:
        options.models = []
    if "eager" not in options.subjects:
        options.subjects.insert(0, "eager")  # every ratio is to it
    if options.pure_step and "pure" not in options.subjects:
        options.subjects.append("pure")
    return options


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    options = options_from(argv)
    mode = "no_routing" if options.no_routing else "routing"
    notes = options.output.with_suffix(".json") if options.output else None
    rows: dict[str, Row] = {}
    kept = merged(notes, mode, rows)
    for name in options.models:
        rows[name] = play(name, options)
        shown = {subject: round(ratio, 3) for subject, ratio in rows[name]["ratio"].items()}
        sys.stderr.write(f"{name}: {rows[name]['ms']['eager']:.4g} ms, {shown}\n")
        kept = merged(notes, mode, rows)  # after each row, so that an interrupted run has them
    command = options.command.replace(" --page-only", "")
    publish(page(kept, command), options.output)


if __name__ == "__main__":
    main()
