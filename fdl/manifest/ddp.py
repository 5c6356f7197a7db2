"""How a manifest says that work is spread over devices: the section ``ddp`` and its values."""

from __future__ import annotations

from fdl.manifest.kinds import SWITCH, Judged, Key, ListOf, Number, Section, Whole, is_whole, one_of

BACKENDS = ("nccl", "cpu")
_AVERAGING = ("sync", "cadence", "async")
POLICIES = (*_AVERAGING, "auto")
NAMED_MODES = (
    "auto",
    "sync",
    *(f"{backend}-{policy}" for backend in BACKENDS for policy in _AVERAGING),
)
_SOLO = "solo-"


def _demand_of_mode(value: object) -> str:
    if value in NAMED_MODES or (isinstance(value, str) and solo_device(value) is not None):
        return ""
    known = ", ".join(f"`{name}`" for name in NAMED_MODES)
    return f"must be `solo-N` for one device, or one of {known}"


def solo_device(mode: str) -> int | None:
    """The number N of the one device in ``solo-N``; None for every other mode."""
    device = mode.removeprefix(_SOLO)
    # `isdigit` alone accepts the digits of every script. No machine has a million devices.
    fits = device != mode and device.isascii() and device.isdigit() and len(device) <= 6
    return int(device) if fits else None


def _demand_of_auto_or_whole(value: object) -> str:
    if is_whole(value):
        return "" if value >= 1 else "must be at least 1"
    return "" if value == "auto" else "must be `auto` or a whole number"


def _demand_of_nodes(value: object) -> str:
    if is_whole(value):
        return "" if value >= 1 else "must be at least 1"
    if isinstance(value, str) and node_range(value):
        return ""
    return 'must be a whole number, or a range such as "1:2"'


def node_range(text: str) -> tuple[int, int] | None:
    """The minimum and maximum in ``2`` or ``1:2``; None for other texts."""
    parts = text.split(":")
    # No job has a million machines, and long numbers are slow to convert.
    if len(parts) > 2 or not all(one.isascii() and one.isdigit() for one in parts):
        return None
    if any(len(one) > 6 or one.startswith("0") for one in parts):
        return None
    least, most = int(parts[0]), int(parts[-1])
    return (least, most) if least <= most else None


def _demand_of_endpoint(value: object) -> str:
    fits = isinstance(value, str) and is_endpoint(value)
    return "" if fits else "must be a host and a port, such as `gpu1:29400`"


def is_endpoint(text: str) -> bool:
    """Whether a text is a host and a port from 1 to 65535."""
    host, _, port = text.rpartition(":")
    if not host or any(char.isspace() for char in host):
        return False
    # A longer number is not a port and would take long to convert.
    return port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535


def _demand_of_auto_or_switch(value: object) -> str:
    fits = value == "auto" or isinstance(value, bool)
    return "" if fits else "must be `auto`, true or false"


MODE = Judged(
    _demand_of_mode,
    [{"enum": list(NAMED_MODES)}, {"pattern": "^solo-[0-9]{1,6}$", "type": "string"}],
    (*NAMED_MODES, "solo-0"),
)
AUTO_OR_WHOLE = Judged(
    _demand_of_auto_or_whole, [{"const": "auto"}, {"minimum": 1, "type": "integer"}]
)
NODES = Judged(
    _demand_of_nodes,
    [
        {"minimum": 1, "type": "integer"},
        {"pattern": "^[1-9][0-9]{0,5}(:[1-9][0-9]{0,5})?$", "type": "string"},
    ],
)
ENDPOINT = Judged(_demand_of_endpoint, [{"pattern": "^\\S+:[0-9]{1,5}$", "type": "string"}])
AUTO_OR_SWITCH = Judged(_demand_of_auto_or_switch, [{"const": "auto"}, {"type": "boolean"}])

SPEED_HINT = Section(
    "SpeedHint",
    "Which rank is slow, and how many times slower.",
    Key("slow_rank", Whole(least=0), "The slowest rank.", required=True),
    Key(
        "ratio",
        Number(above=0),
        "Time per batch of the slowest rank divided by that of the fastest.",
        required=True,
    ),
)

DDP = Section(
    "Ddp",
    "How the work is spread over devices.",
    Key(
        "mode",
        MODE,
        "A policy, or backend and policy in one word (`nccl-async`); `solo-N` trains on device N "
        "alone.",
    ),
    Key(
        "policy",
        one_of(*POLICIES),
        "When ranks average: gradients in every step (`sync`), weights after each window "
        "(`cadence`), or during the next window (`async`). `auto` (default) is `sync` if all "
        "devices have the same name, else `cadence`.",
        excluded_by="mode",
    ),
    Key(
        "backend",
        one_of(*BACKENDS),
        "Average on the GPUs (`nccl`, default) or through main memory (`cpu`).",
        excluded_by="mode",
    ),
    Key(
        "anchor",
        AUTO_OR_WHOLE,
        "Batches of the slowest rank between two averages (default: 10); `auto` adapts the number.",
    ),
    Key(
        "max_anchor",
        Whole(least=0),
        "Upper limit of the anchor (default: 200).",
    ),
    Key(
        "overhead_target",
        Number(),
        "Share of the time that averaging may take, 0.01 to 0.5 (default: 0.1).",
    ),
    Key(
        "divergence_threshold",
        Number(above=0),
        "Distance between ranks at which they average more often (default: 0.05).",
    ),
    Key(
        "no_divergence_guard",
        SWITCH,
        "Whether to ignore the distance between ranks (default: false).",
    ),
    Key(
        "max_batch_diff",
        Whole(least=0),
        "Batches a rank may be ahead of another; 0: lockstep (default: no limit).",
    ),
    Key(
        "max_overshoot",
        Whole(least=0),
        "With `async`: batches a rank may train while an average arrives (default: adapts).",
    ),
    Key(
        "max_grad_norm",
        Number(above=0),
        "Largest norm of the gradients; longer ones are scaled down (default: no limit).",
    ),
    Key(
        "snapshot_timeout",
        Number(above=0),
        "With backend `cpu`: seconds to wait for a late rank (default: 5).",
    ),
    Key("checkpoint_every", Whole(least=1), "Epochs between two checkpoints (default: 1)."),
    Key(
        "progressive",
        AUTO_OR_SWITCH,
        "Whether batches are handed out window by window (true) or divided at the start of an "
        "epoch (false). Default: `auto`, which is true unless `sync` or `partition_ratios` is set.",
    ),
    Key(
        "speed_hint",
        SPEED_HINT,
        "Slowest rank and its ratio, if known before the first measurement.",
    ),
    Key(
        "partition_ratios",
        ListOf(Number(above=0)),
        "Fixed share of the data for each rank: `[0.7, 0.3]` (default: by measured speed).",
    ),
    Key(
        "lr_scale_ratio",
        Number(),
        "Multiply the learning rate by 1 + this × (ranks - 1) (default: 0, unchanged).",
    ),
    Key("timeline", SWITCH, "Whether to record what each rank does and when (default: false)."),
    Key(
        "ranks",
        AUTO_OR_WHOLE,
        "Processes that fdl starts on this machine; `auto`: one per GPU.",
    ),
    Key(
        "nodes",
        NODES,
        'Machines that run the same command: 2, or "1:2" for one or two (default: 1).',
    ),
    Key("rdzv", ENDPOINT, "Address of one of these machines that all can reach: `HOST:29400`."),
    Key(
        "max_restarts",
        Whole(least=0),
        "How often all ranks start again when one is lost after a first step (default: 3).",
    ),
    Key(
        "simulate_ms",
        ListOf(Number(above=0)),
        "Simulate unequal ranks: milliseconds per batch of each rank, `[40, 100]`.",
    ),
)
