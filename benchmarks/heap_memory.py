"""What the kept heap of an entry costs in memory: twenty programs with and without it.

The programs are tests of ``tests/flodl/ecosystem``: other libraries that work on graphs of flodl.
Each runs in a process of its own, once as the C library comes and once as ``fdl`` starts a program
whose manifest asks for ``memory: keep``.

    python -m benchmarks.heap_memory [--rounds 2] [--output docs/benchmarks/heap_memory.md]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import (
    Bar,
    command_line,
    in_turns,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from fdl.plan.heap import TUNABLES_VARIABLE, tunables

ROOT = Path(__file__).parents[1]
FOLDER = "tests/flodl/ecosystem"
PROGRAMS = (
    "test_activation_checkpointing.py::test_a_stateless_graph_gives_the_same_gradients",
    "test_activation_checkpointing.py::test_segments_of_a_chain_of_graphs",
    "test_adapters.py",
    "test_compile.py::test_a_graph_compiles_as_a_part_of_another_module",
    "test_compile.py::test_a_stateful_graph_compiled_with_its_shell_behaves_as_with_manual_policy",
    "test_copies.py::test_a_copy_computes_the_same_and_stands_alone",
    "test_copies.py::test_a_copy_of_a_compiled_graph_runs_eagerly_and_alike",
    "test_copies.py::test_an_averaged_model_follows_a_graph",
    "test_ddp.py::test_a_wrapped_graph_trains_like_the_graph_itself",
    "test_export.py::test_an_exported_program_survives_a_file",
    "test_export.py::test_control_flow_is_exported_as_control_flow",
    "test_export.py::test_onnxruntime_gives_the_same_numbers[mixture]",
    "test_functional.py::test_an_ensemble_of_graphs_runs_as_one",
    "test_functional.py::test_gradients_per_sample_sum_to_the_gradient_of_the_batch",
    "test_lightning.py::test_a_fit_is_the_training_one_would_write_by_hand[mixture]",
    "test_lightning.py::test_a_fit_is_the_training_one_would_write_by_hand[recurrent]",
    "test_safetensors.py::test_the_library_reads_every_tensor_of_a_checkpoint",
    "test_safetensors.py::test_what_the_library_read_becomes_a_state_dict",
    "test_walkers.py::test_operations_are_counted_per_module",
    "test_walkers.py::test_torchinfo_walks_stateful_and_branching_graphs",
)
BAR = Bar(1.10)
"""Memory with the kept heap by memory without: the most of any program."""

RUN = """
import sys
from pathlib import Path
import pytest
code = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", sys.argv[1]])
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(*(status[name].split()[0] for name in ("VmHWM", "VmRSS")))
sys.exit(code)
"""


class Memory(NamedTuple):
    """KiB of a process: the most at any time, and what it holds at its end."""

    peak: float
    resident: float


def memory(program: str, *, kept: bool) -> Memory:
    """The memory of one program."""
    env = {name: value for name, value in os.environ.items() if name != TUNABLES_VARIABLE}
    if kept:
        env[TUNABLES_VARIABLE] = tunables()
    words = [sys.executable, "-c", RUN, f"{FOLDER}/{program}"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    peak, resident = done.stdout.split()[-2:]
    return Memory(float(peak), float(resident))


def row(program: str, plain: Sequence[Memory], kept: Sequence[Memory]) -> list[str]:
    """One program: MiB without and with, and the ratio of each."""
    cells = [f"`{program.removeprefix('test_').replace('.py', '')}`"]
    for part in (0, 1):
        base, mine = [one[part] for one in plain], [one[part] for one in kept]
        cells += [middle(base, ".0f", 1 / 1024), middle(mine, ".0f", 1 / 1024)]
        cells += [f"{median_ratio(mine, base):.3f} ({spread(ratios(mine, base), '.3f')})"]
    return cells


def largest(found: dict[str, list[tuple[Memory, Memory]]], part: int) -> float:
    """The largest ratio of any program."""
    return max(
        median_ratio([kept[part] for _, kept in rounds], [plain[part] for plain, _ in rounds])
        for rounds in found.values()
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("heap_memory", __doc__, rounds=2)
    options = read_options(parser, argv, rounds=1)
    programs = PROGRAMS[-1:] if options.quick else PROGRAMS
    found = in_turns(
        programs,
        lambda one: (memory(one, kept=False), memory(one, kept=True)),
        options.rounds,
        warmup=0,
    )
    ends = [largest(found, part) for part in (0, 1)]
    text = page(
        options,
        "Memory of a kept heap",
        f"{options.rounds} rounds in turns, medians. Twenty programs of `{FOLDER}`, each in a "
        "process of its own: without and with the heap that `fdl` gives a program whose manifest "
        "says `memory: keep`. MiB of the whole process. The *peak* is the most at any time, *at "
        "the end* is what the process holds after its last test.",
        table(
            ["program", "peak", "kept", "ratio", "at the end", "kept", "ratio"],
            [row(name, *zip(*rounds, strict=True)) for name, rounds in found.items()],
        ),
        f"Largest ratio: {ends[0]:.3f} of the peak, {ends[1]:.3f} at the end. The bar is that of "
        f"the larger one: {BAR.verdict(max(ends))}.",
        packages=("torch", "flodl"),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
