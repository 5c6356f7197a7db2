"""The keys of ``slurm:``, in the table of a manifest."""

from __future__ import annotations

from fdl.manifest.kinds import Judged, Key, ListOf, Section, Table, Text, Whole


def minutes(value: object) -> float | None:
    """The minutes that SLURM reads in a time: ``90``, ``1:30:00``, ``2-12``; None if it is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value) if value >= 1 else None
    if not isinstance(value, str) or len(value) > 20:
        return None
    days, dash, rest = value.rpartition("-")
    parts = rest.split(":")
    if not all(one.isascii() and one.isdigit() for one in (*parts, *([days] if dash else []))):
        return None
    if len(parts) > 3:
        return None
    numbers = [int(one) for one in parts]
    if dash:
        hours, mins, seconds = [*numbers, 0, 0][:3]
        found = int(days) * 1440 + hours * 60 + mins + seconds / 60
    elif len(numbers) == 3:
        found = numbers[0] * 60 + numbers[1] + numbers[2] / 60
    else:
        found = numbers[0] + (numbers[1] / 60 if len(numbers) == 2 else 0)
    return found or None


def _demand_of_time(value: object) -> str:
    fits = minutes(value) is not None
    return "" if fits else 'must be minutes, or a time such as "1:30:00" or "2-12:00:00"'


SLURM = Section(
    "Slurm",
    "Resources that a command asks of a cluster, with ``fdl --on slurm``.",
    Key("partition", Text(), "Partition to run in (default: the cluster's own)."),
    Key("account", Text(), "Account that the time is charged to (default: the cluster's own)."),
    Key("qos", Text(), "Quality of service (default: the cluster's own)."),
    Key("constraint", Text(), "Features that a node must have, such as `a100` (default: none)."),
    Key(
        "time",
        Judged(_demand_of_time, [{"type": "integer", "minimum": 1}, {"type": "string"}]),
        'Time limit, required: minutes, "1:30:00" or "2-12:00:00".',
    ),
    Key("nodes", Whole(least=1), "Machines; several get one torchrun each (default: 1)."),
    Key("gpus", Whole(least=1), "GPUs of each machine (default: none)."),
    Key("cpus", Whole(least=1), "Processor cores of each machine (default: the cluster's own)."),
    Key("mem", Text(), "Memory of each machine, such as `32G` (default: the cluster's own)."),
    Key(
        "setup",
        ListOf(Text()),
        "Lines of shell that run before the command: `module load cuda` (default: none).",
    ),
    Key(
        "requeues",
        Whole(least=0),
        "How often a job that reached its time limit is queued again (default: 10).",
    ),
    Key("extra", Table(), "Further options of sbatch, name -> value: `exclude: node7`."),
)
