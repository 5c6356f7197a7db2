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

from benchmarks.measure import environment, median_ratio, publish, table
from benchmarks.ten_models_networks import networks
from benchmarks.ten_models_subject import SUBJECTS
from fdl.planning.heap import KEPT_HEAP, TUNABLES_VARIABLE

TURN_SECONDS = 1.5  # what one turn of the slowest should take, unless --steps says otherwise
BARS = {"mlp": 0.52, "residual_tower": 0.52, "iterative_refine": 0.52, "convnet": 0.6}
KEPT = (
    "tuned",
    "flodl",
    "pure",
)  # who runs with the kept heap: plain PyTorch has no launcher to set it
COMPARED = ("eager", "flodl", "pure")  # whose losses are held against each other
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
        if options.memory == "kept" and subject in KEPT:
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
        losses, settled = {}, {}
        for name, player in players.items():
            # Exactly as many steps, then whatever an engine still needs to decide. Somebody else's
            # tuning and compilation only warm up.
            before = options.agreement if name in COMPARED else WARMUP
            player.ask(f"train {before}")
            if name in COMPARED:
                losses[name] = player.ask("loss")["loss"]
            settled[name] = before + player.ask("settle 1")["steps"]
        steps = options.steps or _turn(players["eager"])
        seconds = _turns(players, steps, options.rounds)
        reports = {name: player.ask("report") for name, player in players.items()}
    return {
        "ms": {name: statistics.median(each) / steps * 1e3 for name, each in seconds.items()},
        "ratio": {name: median_ratio(each, seconds["eager"]) for name, each in seconds.items()},
        "over_tuned": median_ratio(seconds["flodl"], seconds["tuned"])
        if {"flodl", "tuned"} <= set(seconds)
        else None,
        "loss": losses,
        "settled": settled,
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


def _turns(players: Mapping[str, Player], steps: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of every turn; who begins rotates, and the first round does not count."""
    names = list(players)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            took = players[name].ask(f"train {steps}")["seconds"]
            if number:
                seconds[name].append(took)
    return seconds


def page(kept: Mapping[str, Mapping[str, Row]]) -> str:
    """Write the page from all rows that are known."""
    intro = [
        "# Ten models",
        "Time per step as a ratio to plain PyTorch: below 1 is faster. *tuned* and *compile* are "
        "by hand, the second with `torch.compile(model)` and the fused Adam. *flodl* is engine "
        "auto after its decision; *pure* is the same with `.pure_step()`, which lets it compile. "
        "Float32, Adam, data drawn once; each way in a process of its own, in turns; "
        "medians over the rounds. *loss* is the relative difference to plain PyTorch of the loss "
        "of the first batch after the same number of steps (bar 1e-4). Tuned and flodl run with "
        "the heap kept where a row says so, as `fdl` starts a training.",
    ]
    titles = {
        "routing": "## Engine auto",
        "no_routing": "## Without routing of matrix products",
    }
    for mode, title in titles.items():
        if kept.get(mode):
            intro += [title, _mode_table(kept[mode]), _means(kept[mode], mode), _how(kept[mode])]
    return "\n\n".join(intro)


def _mode_table(rows: Mapping[str, Row]) -> str:
    header = ["model", "plain ms", "tuned", "compile", "flodl", "pure"]
    header += ["bar", "flodl / tuned", "loss"]
    lines = [
        [
            name,
            f"{row['ms']['eager']:.4g}",
            *(_ratio(row["ratio"].get(subject)) for subject in SUBJECTS[1:]),
            _against(row["ratio"].get("flodl"), BARS.get(name, 1.0)),
            _ratio(row["over_tuned"]),
            _loss_difference(row["loss"]),
        ]
        for name in networks()
        if (row := rows.get(name)) is not None
    ]
    return table(header, lines)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _against(reached: float | None, bar: float) -> str:
    """A bar, and whether it holds."""
    if reached is None:
        return f"{bar:.2f}"
    return f"{bar:.2f} {'PASS' if reached <= bar else 'MISSED'}"


def _loss_difference(losses: Mapping[str, float]) -> str:
    if "flodl" not in losses:
        return ""
    return f"{abs(losses['flodl'] - losses['eager']) / abs(losses['eager']):.1e}"


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
        parts.append(f"flodl / tuned {over_tuned:.3f} (bar {_against(over_tuned, 1.03)})")
    taken = [used for row in rows.values() for used in row["report"]["flodl"].get("tuning", [])]
    routed = mode == "routing" and any("oneDNN" in used for used in taken)
    where = "where products are routed" if routed else "without routing"
    bar = _against(means.get("flodl"), 0.58 if routed else 0.95)
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(networks()), default=list(networks()))
    usual = [subject for subject in SUBJECTS if subject != "pure"]
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS, default=usual)
    parser.add_argument("--pure-step", action="store_true", help="measure .pure_step() as well")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, help="steps of a turn; default: about 1.5 s of eager")
    parser.add_argument("--agreement", type=int, default=50, help="steps before losses compare")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", choices=("kept", "default"), default="kept")
    parser.add_argument("--no-routing", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny sizes: to try the benchmark")
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--page-only", action="store_true", help="write the page from the rows that are kept"
    )
    options = parser.parse_args(argv)
    if options.page_only:
        options.models = []
    if "eager" not in options.subjects:
        options.subjects.insert(0, "eager")  # every ratio is to it
    if options.pure_step and "pure" not in options.subjects:
        options.subjects.append("pure")
    return options


def main() -> None:
    """Measure and publish."""
    options = options_from()
    mode = "no_routing" if options.no_routing else "routing"
    notes = options.output.with_suffix(".json") if options.output else None
    rows: dict[str, Row] = {}
    kept = merged(notes, mode, rows)
    for name in options.models:
        rows[name] = play(name, options)
        shown = {subject: round(ratio, 3) for subject, ratio in rows[name]["ratio"].items()}
        sys.stderr.write(f"{name}: {rows[name]['ms']['eager']:.4g} ms, {shown}\n")
        kept = merged(notes, mode, rows)  # after each row, so that an interrupted run has them
    publish(page(kept), options.output)


if __name__ == "__main__":
    main()
