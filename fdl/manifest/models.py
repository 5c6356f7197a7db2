"""The keys and values that a manifest may hold: one model for each mapping.

:mod:`fdl.manifest.check` checks a tree by them and words the errors. Editors get them as JSON
Schema, the reference as Markdown tables; the text under a key is what both say about it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from fdl.manifest.kinds import (
    AutoOrCount,
    AutoOrSwitch,
    Count,
    Endpoint,
    EnvFiles,
    Factor,
    Mapping,
    Mode,
    Nodes,
    Parent,
    Pattern,
    Referring,
    Section,
    SwitchOr,
    Table,
    Texts,
    Time,
    Values,
    Variables,
    refused,
)


class SpeedHint(Section):
    """Which rank is slow, and how many times slower."""

    slow_rank: NonNegativeInt
    """The slowest rank."""
    ratio: PositiveFloat
    """Time per batch of the slowest rank divided by that of the fastest."""


def _given(key: str) -> dict[str, Any]:
    return {"required": ["mode", key], "properties": dict.fromkeys(("mode", key), _NOT_NULL)}


_NOT_NULL = {"not": {"type": "null"}}


# `python scripts/settings.py` renews the keys of Ddp, Guards and Training that flodl sets.
class Ddp(Section):
    """How the work is spread over devices."""

    model_config = ConfigDict(
        json_schema_extra={"not": {"anyOf": [_given("policy"), _given("backend")]}}
    )

    mode: Mode | None = None
    """A policy, or backend and policy in one word (`nccl-async`); `solo-N` trains on device N
    alone."""
    policy: Literal["sync", "cadence", "async", "auto"] | None = None
    """When the ranks average; `auto`: `sync` on equal devices, else `cadence` (default: auto).
    `sync` averages gradients in every step, `cadence` weights after each window, and `async`
    weights during the next window. Devices of one name are equal. A training of fewer than twelve
    windows takes `sync` on any devices."""
    backend: Literal["nccl", "cpu"] | None = None
    """Average with `nccl` on the GPUs, or with `cpu` through main memory (default: nccl)."""
    anchor: AutoOrCount | None = None
    """Batches of the slowest rank between two averages, at first (default: 10, or `auto`)."""
    max_anchor: NonNegativeInt | None = None
    """Upper limit of the anchor (default: 200)."""
    overhead_target: float | None = None
    """Part of the computing time that averages may take: 0.01 to 0.5 (default: 0.1). Above it,
    windows become longer."""
    divergence_threshold: PositiveFloat | None = None
    """Relative distance from the average that makes windows shorter (default: 0.05)."""
    no_divergence_guard: bool | None = None
    """Whether to ignore the distance between ranks (default: false)."""
    max_batch_diff: NonNegativeInt | None = None
    """Batches a rank may be ahead of another; 0: lockstep (default: no limit)."""
    max_overshoot: NonNegativeInt | None = None
    """With `async`: batches a rank may train while an average arrives (default: adapts)."""
    max_grad_norm: PositiveFloat | None = None
    """Largest 2-norm of all gradients of a step (default: no limit). Longer gradients are scaled
    down."""
    snapshot_timeout: PositiveFloat | None = None
    """With `cadence` and backend `cpu`: seconds to wait for a late rank (default: 5). After them,
    all ranks skip the average together."""
    checkpoint_every: Count | None = None
    """Epochs between two checkpoints (default: 1)."""
    progressive: AutoOrSwitch | None = None
    """Hand out batches window by window (default: auto). False divides them at the start of an
    epoch. `auto`, in Python None, does so for `sync` and with `partition_ratios`."""
    speed_hint: SpeedHint | None = None
    """Slow rank, and how many times slower than the others it is. A ratio below 1 is replaced by
    its reciprocal."""
    partition_ratios: list[PositiveFloat] | None = None
    """Fixed share of the data for each rank (default: by measured speed). Nothing is balanced
    then."""
    lr_scale_ratio: NonNegativeFloat | None = None
    """Multiply the learning rate by 1 + this × (ranks - 1) (default: 0)."""
    timeline: bool | None = None
    """Record what each rank does and when. It is written into the run directory."""
    ranks: AutoOrCount | None = None
    """Processes to start if no launcher did (default: one per usable GPU, or `auto`)."""
    nodes: Nodes | None = None
    """Machines that run the same command: 2, or "1:2" for one or two (default: 1)."""
    rdzv: Endpoint | None = None
    """Address of one of these machines that all can reach: `HOST:29400`."""
    max_restarts: NonNegativeInt | None = None
    """How often all ranks start again when one is lost after a first step (default: 3)."""
    simulate_ms: list[PositiveFloat] | None = None
    """Milliseconds per batch of each rank, to simulate unequal ranks. Batches are padded."""
    min_ranks: Count | None = None
    """With `elastic`: the fewest ranks that train; fewer wait for others to join (default: 1)."""
    elastic: bool | None = None
    """Let ranks come and go while the others train on; needs `flodl[elastic]` and `cadence`. What a
    lost rank has trained since the last average is trained again by the others."""
    exchange: Literal["float32", "bf16", "int8"] | None = None
    """Send gradients, or changes of weights, as `float32`, `bf16` or `int8` (default: float32).
    `bf16` sends half of the bytes and rounds them; `int8` sends a quarter. Its rounding errors are
    added to the next exchange. Buffers and the state of optimizers are not rounded."""
    micro_batch: AutoOrCount | None = None
    """Compute a batch in pieces of so many samples (default: the whole batch, or `auto`). The step
    stays the same. With `auto`, each rank takes what fits into its memory, as `fdl plan --try`
    measures it."""

    @field_validator("policy", "backend")
    @classmethod
    def _not_beside_mode(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("mode") is not None:
            raise refused("cannot stand beside `mode`, which says the same; keep one of them")
        return value


class Guards(Section):
    """What a training does after a bad loss."""

    spike: Annotated[float, Field(gt=1)] | None = None
    """Distance of a spike from the median of the last losses, in multiples of their spread
    (default: 30)."""
    window: Annotated[int, Field(ge=16)] | None = None
    """Most losses that the median is taken of; the first 16 are not judged (default: 64)."""
    snapshots: Count | None = None
    """States kept in host memory (default: 2)."""
    every: Count | None = None
    """Optimizer steps between two snapshots (default: so that they take at most 0.25 % of the
    time). Several ranks use 100 unless this is set."""
    memory: Count | None = None
    """Most bytes of all snapshots of a process (default: half of the available memory)."""
    attempts: Count | None = None
    """How often it goes back for one place in the data before it gives up (default: 3)."""
    lower_lr: Factor | None = None
    """Factor of the learning rate from the second attempt at one place on; 1 keeps the rate
    (default: 0.5)."""


def _program_section(value: object) -> object:
    if not isinstance(value, dict):
        raise PydanticCustomError("extra_forbidden", "unknown key")
    return value


class Training(Section):
    """The length and pace of a training."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(_program_section)]]

    epochs: Referring[int] | None = None
    """Passes over the data."""
    batch_size: Referring[Count] | None = None
    """Samples per batch."""
    batches_per_epoch: Referring[int] | None = None
    """Batches per epoch, instead of all data."""
    lr: Referring[float] | None = None
    """Learning rate."""
    seed: Referring[int] | None = None
    """Seed of the random numbers."""
    engine: Referring[Literal["eager", "auto", "compiled", "cuda_graph"]] | None = None
    """How a Trainer computes a step: eager is a plain loop; auto, compiled, cuda_graph are faster
    (default: eager)."""
    guards: SwitchOr[Guards] | None = None
    """Whether a Trainer of flodl goes back after a bad loss and leaves its batches out: true, or a
    mapping of the keys below. It reaches the program in `FLODL_GUARDS`."""


class Output(Section):
    """Folder of the runs, and port of the live page."""

    dir: str | None = None
    """Folder of the runs; each run gets a folder in it."""
    monitor: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of the live page."""
    timeline: bool | None = None
    """Whether to record what each rank does and when (default: false)."""
    record: bool | None = None
    """Whether each start of `entry` leaves a run folder (default: true). Without one, the program
    writes directly to the terminal."""


class Metric(Section):
    """Where a metric stands in the output of `entry`."""

    value: Pattern
    """Regular expression of the value, searched in each line. Its first group is the number."""
    step: Pattern | None = None
    """Regular expression of the step, searched in the same way; the last one found counts (default:
    the values are numbered)."""


class SlurmNodes(Section):
    """Machines of one kind that a job asks of a cluster."""

    partition: str | None = None
    """Partition to run in (default: the cluster's own)."""
    account: str | None = None
    """Account that the time is charged to (default: the cluster's own)."""
    qos: str | None = None
    """Quality of service (default: the cluster's own)."""
    constraint: str | None = None
    """Features that a node must have, such as `a100` (default: none)."""
    nodes: Count | None = None
    """Machines; several get one torchrun each (default: 1)."""
    gpus: Count | None = None
    """GPUs of each machine (default: none)."""
    cpus: Count | None = None
    """Processor cores of each machine (default: the cluster's own)."""
    mem: str | None = None
    """Memory of each machine, such as `32G` (default: the cluster's own)."""
    extra: dict[str, Any] | None = None
    """Further options of sbatch, name -> value: `exclude: node7`."""


class Slurm(SlurmNodes):
    """Resources that a command asks of a cluster, with ``fdl --on slurm``."""

    time: Time | None = None
    """Time limit, required: minutes, "1:30:00" or "2-12:00:00"."""
    setup: list[str] | None = None
    """Lines of shell that run before the command: `module load cuda` (default: none)."""
    requeues: NonNegativeInt | None = None
    """How often a job that reached its time limit is queued again (default: 10)."""
    het: list[SlurmNodes] | None = None
    """Unequal machines in one heterogeneous job. Each entry has its own `nodes`, `gpus`, `cpus`,
    `mem`, `partition`, …; what it does not set is as in `slurm`."""


class HostOf(Section):
    """A machine on which `fdl --on NAME` runs commands, through ssh."""

    address: str | None = None
    """What ssh connects to: `user@host`, or a name of your ssh configuration (default: the name
    of the host)."""
    folder: str | None = None
    """The folder of the project there (default: the same path as here)."""
    python: str | None = None
    """The interpreter there, relative to the folder (default: `.venv/bin/python`)."""
    gpus: Count | None = None
    """GPUs to use; each gets a rank (default: all)."""
    env: Variables | None = None
    """Environment variables of commands there."""
    meet: Endpoint | None = None
    """Where the ranks of other hosts reach this one, if it is the first: `10.0.0.1:29400`
    (default: the address that ssh reached, and the first free port from 29400 on)."""


class Command(Mapping):
    """One entry of ``commands``; which keys go together is judged when it is resolved."""

    description: str | None = None
    """One line for lists and help pages."""
    run: str | None = None
    """A shell command; arguments follow on the command line after `--`."""
    subcommand: str | None = None
    """Subcommand of `entry`'s program that the preset calls: `fit`."""
    style: Literal["kebab", "snake", "keyvalue", "hydra", "fire"] | None = None
    """Spelling of options for this `entry`; see the same key of the manifest."""
    append: str | None = None
    """Arguments that are always added to `run`; `--no-append` leaves them out."""
    errexit: bool | None = None
    """Whether `run` ends at the first line that fails (default: true if it has several lines)."""
    args: dict[str, Any] | None = None
    """Arguments of `run`: name -> default, or a row as in `schema`, with `positional: true` for a
    word without a flag. The script gets each as a variable, and these words as `"$@"`."""
    path: str | None = None
    """A folder with an fdl.yml of its own; without `run` and `path`, the folder of this name."""
    entry: str | None = None
    """Program to run instead of the `entry` of the folder's fdl.yml."""
    cwd: str | None = None
    """Folder in which the command runs, relative to the fdl.yml; by default its own folder."""
    confirm: str | None = None
    """Question to ask before the command runs; `fdl -y` answers yes. By default none."""
    docker: str | None = None
    """Docker compose service in which `run` runs."""
    env: Variables | None = None
    """Environment variables of the command; those of your shell win."""
    env_file: EnvFiles | None = None
    """Files of `NAME=value` lines with further variables; they win over `env`."""
    needs: Texts | None = None
    """Commands that run before this one, as you type them after `fdl`; each runs once."""
    inputs: Texts | None = None
    """Files that the command reads, as patterns (`data/**/*.csv`), and variables (`env:NAME`). It
    is skipped if none has changed since its last success (default: it always runs)."""
    outputs: Texts | None = None
    """Files that the command writes, as patterns; if one is missing or changed, it runs."""
    stop_timeout: NonNegativeFloat | None = None
    """Seconds from a stop signal until the program and all its processes are killed (default, or
    null: no limit)."""
    grace: NonNegativeFloat | None = None
    """Seconds until processes left over after a program ended on a signal are killed, at most until
    the end of `stop_timeout` (default: 10)."""
    slurm: Slurm | None = None
    """What the command asks of a cluster, with `fdl --on slurm`."""
    ddp: Ddp | None = None
    """How the preset spreads the work over devices."""
    training: Training | None = None
    """Length and pace of the preset's training."""
    output: Output | None = None
    """Where the preset's run writes."""
    metrics: Table[Metric] | None = None
    """Metrics that the program prints, besides those of the manifest; a null removes one."""
    track: Literal["mlflow", "wandb"] | None = None
    """Tracker to which the program logs; see the same key of the manifest. A null means none."""
    options: dict[str, Any] | None = None
    """Further options of the preset: `model: big` is `--model big`, `fast: true` is `--fast`.
    Mappings become dotted names; a key that begins with `-` is passed unchanged."""


class Sweep(Section):
    """One command, run once for each combination of values."""

    command: str
    """The command as you type it after `fdl`: `train quick`."""
    each: Table[Values]
    """Option or setting -> its values: a list, or text such as `1..3`, `a,b` and, for a search,
    `1e-5..1e-1:log`."""
    zip: bool | None = None
    """Whether values are taken side by side (default: every combination)."""
    jobs: Count | None = None
    """Number of runs at the same time (default: 1)."""
    gpus_each: Count | None = None
    """GPUs that each run has to itself (default: all share)."""
    search: str | None = None
    """Sampler of Optuna that picks the values: `tpe` or `random`, with a seed as in `tpe:1`."""
    trials: Count | None = None
    """Number of runs of a search."""
    goal: str | None = None
    """Metric to optimize, with its direction: `val_loss:min`."""


class Root(Mapping):
    """A whole manifest, of a project or of the folder of a command."""

    description: str | None = None
    """One line about the project or the folder."""
    commands: Table[Command] | None = None
    """Name -> what it does: a shell command (`run`), a folder (`path`), or a preset of `entry`."""
    inherit_from: Parent | None = Field(None, alias="inherit-from")
    """Manifest to inherit from; values of this file win."""
    entry: str | None = None
    """Program of this folder: `python main.py`. It gets the settings below as options."""
    subcommand: str | None = None
    """Subcommand of the program that gets the settings: `fit`."""
    style: Literal["kebab", "snake", "keyvalue", "hydra", "fire"] | None = None
    """Spelling of options for a program whose options fdl does not know: `kebab` (`--batch-size
    8`), `snake` (`--batch_size 8`), `keyvalue` (`batch_size=8`), `hydra`, or `fire` (`--sizes '[1,
    2]'`)."""
    cwd: str | None = None
    """Folder in which `entry` runs, relative to this file; by default the folder of this file."""
    docker: str | None = None
    """Docker compose service in which `entry` runs."""
    memory: Literal["auto", "keep", "default"] | None = None
    """Whether `entry` keeps freed memory for its next step: `keep`, `default` (never) or `auto`
    (programs that use flodl; default). The variable `FDL_MEMORY` wins."""
    env: Variables | None = None
    """Environment variables of all commands; those of your shell win."""
    env_file: EnvFiles | None = None
    """Files of `NAME=value` lines with further variables; they win over `env`."""
    stop_timeout: NonNegativeFloat | None = None
    """Seconds from a stop signal until the program and all its processes are killed (default, or
    null: no limit)."""
    grace: NonNegativeFloat | None = None
    """Seconds until processes left over after a program ended on a signal are killed, at most until
    the end of `stop_timeout` (default: 10)."""
    secrets: list[str] | None = None
    """Variables whose values are never printed, besides those with names such as `HF_TOKEN`."""
    slurm: Slurm | None = None
    """What commands ask of a cluster, with `fdl --on slurm`."""
    hosts: Table[HostOf] | None = None
    """Name -> machine: `fdl --on NAME,NAME` runs the ranks of a command there."""
    ddp: Ddp | None = None
    """How the work is spread over devices."""
    training: Training | None = None
    """Length and pace of a training."""
    output: Output | None = None
    """Folder of the runs, and port of the live page."""
    metrics: Table[Metric] | None = None
    """Metrics that `entry` prints: name -> `{value: REGEX, step: REGEX}`. fdl records them."""
    track: Literal["mlflow", "wandb"] | None = None
    """Tracker to which `entry` logs: `mlflow` or `wandb` (default: none). It writes into the run
    folder, and fdl records its metrics and settings."""
    options: dict[str, Any] | None = None
    """Further options of `entry`: `weight_decay: 0.1` is `--weight-decay 0.1`. Those of a preset
    win."""
    sweeps: Table[Sweep] | None = None
    """Name -> sweep: `fdl sweep run NAME` runs it."""
    arg_name: str | None = Field(None, alias="arg-name")
    """Name of the preset on the help page: `recipe` gives `<recipe>` (default: `preset`)."""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """Arguments of `entry`, for a program that does not answer `--fdl-schema`."""
    compile: bool | None = None
    """Whether fdl may start `entry` with `--fdl-schema` to ask for its arguments, although its
    source does not mention `FdlArgs` (default: false)."""


SECTIONS: dict[str, type[Section]] = {"ddp": Ddp, "training": Training, "output": Output}
"""The sections that a manifest and an entry of `commands` may both hold: name -> section."""


def keys(model: type[Mapping]) -> list[str]:
    """The keys of a mapping as they are written."""
    return [field.alias or name for name, field in model.model_fields.items()]
