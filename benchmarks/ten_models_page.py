"""The page of the ten networks, from the rows that ``benchmarks.ten_models`` keeps as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.measure import NOT_YET, Bar, table
from benchmarks.ten_models_networks import networks
from benchmarks.ten_models_subject import TOTAL_STEPS

Row = dict[str, Any]
Parts = Mapping[str, Row]

NO_SLOWER = Bar(1.02)
OVER_HAND = Bar(1.0)
MEANS = {"routed": Bar(0.75), "unrouted": Bar(0.85)}
AUTO_MEAN = Bar(0.82)
LOSS = Bar(1e-4, form="g")
COLUMNS = ("auto", "pure")
EARLIER, BEFORE = "earlier", "before"

INTRO = (
    f"Time of a training of {TOTAL_STEPS} steps (50 epochs of 50 batches), with all trials and "
    "compilations, as a ratio to plain PyTorch: below 1 is faster. It is the measured beginning, "
    "until nothing is tried out any longer, and then the median step. *auto* is flodl as "
    "`fdl train --engine auto` starts it, over plain Adam. The default engine, eager, computes as "
    "plain PyTorch does. *pure* is the same with `.pure_step()`, which lets it "
    "compile. *better* is the better one of the two. *by hand* is the best of several variants of "
    "plain PyTorch, which the list names. Variants that compile compete with *pure* only. Plain "
    "PyTorch runs as it comes, with its own heap. All ways have float32, the same data and the "
    "same threads. Each runs in a process of its own, in turns. *step* is a step after the "
    "decision, with the middle 80 % of the rounds. *loss* and *weights* are compared with plain "
    "PyTorch after the decision, at the same step. *loss* is the relative difference of the loss "
    "of the first batch. *weights* is the largest difference of a weight by the largest weight. "
    "*Drift* is the largest of the same figures for the variants by hand that do not compile: they "
    "compute the same mathematics and round otherwise."
)
TITLES = {"routing": "## Engine auto", "no_routing": "## Without routing of matrix products"}


def page(kept: Mapping[str, Mapping[str, Any]], command: str) -> str:
    """Write the page from all rows that are known, by mode, network and part."""
    text = ["# Ten models", f"{INTRO} `{command}`"]
    for mode, title in TITLES.items():
        rows = {name: kept[mode][name] for name in networks() if kept.get(mode, {}).get(name)}
        if rows:
            text += [title, _table(rows), *_means(rows, mode), _how(rows)]
    if kept.get(BEFORE):
        text += _before(kept[BEFORE])
    if kept.get(EARLIER):
        text += _earlier(kept[EARLIER])
    return "\n\n".join(text)


def _table(rows: Mapping[str, Parts]) -> str:
    header = ["model", "plain ms", "step", "spread", "auto", "pure", "better", "by hand"]
    header += ["better / by hand", "loss", "loss drift", "weights", "weights drift"]
    return table(header, [_cells(name, parts) for name, parts in rows.items()])


def _cells(name: str, parts: Parts) -> list[str]:
    auto, better = parts.get("auto"), _better(parts)
    cells = [name, *([f"{auto['ms']:.4g}", f"{auto['step']:.3f}"] if auto else ["", ""])]
    cells.append(auto["spread"] if auto else "")
    total = {column: float(parts[column]["total"]) for column in COLUMNS if column in parts}
    cells.append(f"{total['auto']:.3f}, {NO_SLOWER.verdict(total['auto'])}" if auto else "")
    cells.append(f"{total['pure']:.3f}" if "pure" in total else NOT_YET)
    if better is None:
        cells += ["", "", ""]
    else:
        ratio, hand = better["total"], best_by_hand(better)
        cells += [f"{ratio:.3f}, {NO_SLOWER.verdict(ratio)}", f"{hand:.3f}", f"{ratio / hand:.3f}"]
    agreed = parts.get("agreement")
    if agreed is None:
        return [*cells, NOT_YET, "", "", ""]
    ours, by_hand = agreed["flodl"], agreed["by_hand"].values()
    drift = {kind: f"{max(one[kind] for one in by_hand):.1e}" for kind in ("loss", "weights")}
    cells += [f"{ours['loss']:.1e}, {LOSS.verdict(ours['loss'])}", drift["loss"]]
    return [*cells, f"{ours['weights']:.1e}", drift["weights"]]


def _better(parts: Parts) -> Row | None:
    """The column with the smaller total time."""
    measured = [parts[column] for column in COLUMNS if column in parts]
    return min(measured, key=lambda row: float(row["total"]), default=None)


def best_by_hand(row: Row) -> float:
    """Total time of the best variant by hand of a column."""
    return float(min(row["by_hand"].values()))


def _means(rows: Mapping[str, Parts], mode: str) -> Iterable[str]:
    """Geometric means, with their bars."""
    parts = []
    for column in COLUMNS:
        found = [each[column] for each in rows.values() if column in each]
        if found:
            mean = statistics.geometric_mean([row["total"] for row in found])
            hand = statistics.geometric_mean([best_by_hand(row) for row in found])
            bar = f" (bar {AUTO_MEAN.verdict(mean)})" if column == "auto" else ""
            parts.append(
                f"{column} {mean:.3f}{bar} beside {hand:.3f} by hand ({len(found)} models)"
            )
    better = [row for each in rows.values() if (row := _better(each)) is not None]
    if not better:
        return
    mean = statistics.geometric_mean([row["total"] for row in better])
    over = statistics.geometric_mean([row["total"] / best_by_hand(row) for row in better])
    routed = mode == "routing" and any("oneDNN" in str(row["report"]) for row in better)
    kind = "routed" if routed else "unrouted"
    where = "where products are routed" if routed else "without routing"
    parts.append(f"better column {mean:.3f} (bar {where}: {MEANS[kind].verdict(mean)})")
    parts.append(f"better / by hand {over:.3f} (bar {OVER_HAND.verdict(over)})")
    yield f"Geometric means over {len(rows)} models: {', '.join(parts)}."


def _how(rows: Mapping[str, Parts]) -> str:
    """What each way did, and where it was measured."""
    lines = []
    for name, parts in rows.items():
        for column in COLUMNS:
            if (row := parts.get(column)) is None:
                continue
            hands = ", ".join(f"`{how}` {total:.3f}" for how, total in row["by_hand"].items())
            lines.append(
                f"- {name}, {column}. By hand: {hands}. flodl decided after {row['begin_steps']} "
                f"steps: `{json.dumps(row['report'])}`. {row['rounds']} rounds of {row['steps']} "
                f"steps. {row['environment']}"
            )
    return "\n".join(lines)


def _before(rows: Mapping[str, Row]) -> list[str]:
    """The table of what *auto* reached before it had one protocol for all candidates."""
    lines = [
        [name, *(f"{row[one]:.3f}" if one in row else "" for one in COLUMNS), row["environment"]]
        for name, row in rows.items()
    ]
    best = [min(row[one] for one in COLUMNS if one in row) for row in rows.values()]
    auto = statistics.geometric_mean([row["auto"] for row in rows.values()])
    better = statistics.geometric_mean(best)
    return [
        "## With several protocols",
        "Until 2026-11-27 each kind of candidate had a protocol of its own, and products went "
        "through oneDNN by phases. The total times of that engine:",
        table(["model", *COLUMNS, "measured on"], lines),
        f"Geometric means over {len(rows)} models: auto {auto:.3f} (bar "
        f"{AUTO_MEAN.verdict(auto)}), better column {better:.3f} (bar where products are routed: "
        f"{MEANS['routed'].verdict(better)}).",
    ]


def _earlier(rows: Mapping[str, Row]) -> list[str]:
    """The table of rows that were measured under earlier rules."""
    subjects = ("tuned", "compiled", "flodl", "pure")
    lines = [
        [name, *(f"{r:.3f}" if (r := row["ratio"].get(one)) else "" for one in subjects)]
        for name, row in rows.items()
    ]
    means = []
    for subject in subjects:
        found = [row["ratio"][subject] for row in rows.values() if subject in row["ratio"]]
        means.append(f"{subject} {statistics.geometric_mean(found):.3f}")
    dates = sorted({row["environment"].rpartition(" ")[2] for row in rows.values()})
    return [
        "## Earlier rules",
        f"Time per step after the decision, {dates[0]} to {dates[-1]}. *Tuned* was one variant by "
        "hand. It, *flodl* and *pure* had a kept heap, plain PyTorch did not.",
        table(["model", *subjects], lines),
        f"Geometric means over {len(rows)} models: {', '.join(means)}.",
    ]
