"""The flags of a program whose ranks share the work: those that ``ddp:`` of a manifest becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator, model_validator

from fdl.manifest.words import NAMED_MODES, is_endpoint, node_range, solo_device
from fdl.programs.args._base import FdlArgs
from fdl.programs.args._fields import option
from fdl.programs.args._record import DEFAULT

_GROUP = "distributed"
_option = partial(option, group=_GROUP)


def _is_auto_or_whole(text: str) -> bool:
    return text == "auto" or (node_range(text) is not None and ":" not in text)


def _hint(text: str) -> dict[str, Any] | None:
    """The mapping that a hint such as ``1:2.5`` stands for; None if it is none."""
    rank, _, ratio = text.partition(":")
    try:
        slow_rank, factor = int(rank), float(ratio)
    except ValueError:
        return None
    fits = slow_rank >= 0 and 0 < factor < float("inf")
    return {"slow_rank": slow_rank, "ratio": factor} if fits else None


_AUTO_OR_WHOLE = (_is_auto_or_whole, "expected auto or a whole number from 1")
_CHECKS: dict[str, tuple[Callable[[str], object], str]] = {
    "anchor": _AUTO_OR_WHOLE,
    "ranks": _AUTO_OR_WHOLE,
    "micro_batch": _AUTO_OR_WHOLE,
    "nodes": (node_range, "expected a whole number from 1, or a range such as 1:2"),
    "rdzv": (is_endpoint, "expected a host and a port"),
    "speed_hint": (_hint, "expected RANK:RATIO, such as 1:2.5"),
}
"""Option -> what its text has to pass, and what the message says otherwise."""


class DdpArgs(FdlArgs):
    """Base of the arguments of a program that trains on several devices.

    A program adds its own, and hands on what was given::

        class Args(DdpArgs):
            \"\"\"Train a classifier.\"\"\"

            epochs: int = option(default=10, help="Passes over the data")

        args = Args.parse_or_schema()
        Trainer.builder(...).ddp(args.ddp_settings())

    ``--help`` shows these flags as one line, and ``--help distributed`` shows them all. A flag that
    is not given leaves the program's own setting, or the default that its help names. ``fdl`` acts
    on ``--ranks``, ``--nodes``, ``--rdzv`` and ``--max-restarts`` before the program starts.
    """

    collapsed: ClassVar[Mapping[str, str]] = {_GROUP: "several GPUs or machines"}

    # `python scripts/settings.py` renews those that are settings of flodl.
    mode: str | None = _option(
        completer=f"printf '%s\\n' {' '.join(NAMED_MODES)} solo-0",
        help=f"Backend and policy in one word: {', '.join(NAMED_MODES)}; solo-N: device N alone",
    )
    policy: Literal["sync", "cadence", "async", "auto"] | None = _option(
        help="When the ranks average; auto: sync on equal devices, else cadence [default: auto]"
    )
    backend: Literal["nccl", "cpu"] | None = _option(
        help="Average with nccl on the GPUs, or with cpu through main memory [default: nccl]"
    )
    anchor: str | None = _option(
        completer="echo auto",
        help="Batches of the slowest rank between two averages, at first; or auto [default: 10]",
    )
    max_anchor: int | None = _option(help="Upper limit of the anchor [default: 200]")
    overhead_target: float | None = _option(
        help="Part of the computing time that averages may take: 0.01 to 0.5 [default: 0.1]"
    )
    divergence_threshold: float | None = _option(
        help="Relative distance from the average that makes windows shorter [default: 0.05]"
    )
    no_divergence_guard: bool = _option(help="Do not watch the distance between ranks")
    max_batch_diff: int | None = _option(
        help="Batches a rank may be ahead of another; 0: lockstep [default: no limit]"
    )
    max_overshoot: int | None = _option(
        help="With async: batches a rank may train while an average arrives [default: adapts]"
    )
    max_grad_norm: float | None = _option(
        help="Largest 2-norm of all gradients of a step [default: no limit]"
    )
    snapshot_timeout: float | None = _option(
        help="With cadence and backend cpu: seconds to wait for a late rank [default: 5]"
    )
    checkpoint_every: int | None = _option(help="Epochs between two checkpoints [default: 1]")
    progressive: Literal["auto", "true", "false"] | None = _option(
        help="Hand out batches window by window [default: auto]"
    )
    speed_hint: str | None = _option(
        help="Slow rank, and how many times slower than the others it is: 1:2.5"
    )
    partition_ratios: list[float] = _option(
        help="Fixed share of the data for each rank, with commas [default: by measured speed]"
    )
    lr_scale_ratio: float | None = _option(
        help="Multiply the learning rate by 1 + this × (ranks - 1) [default: 0]"
    )
    timeline: bool = _option(help="Record what each rank does and when")
    ranks: str | None = _option(
        completer="echo auto",
        help="Processes to start if no launcher did; or auto [default: one per usable GPU]",
    )
    nodes: str | None = _option(help="Machines that take part: 2, or 1:2 for one or two")
    rdzv: str | None = _option(help="host:port of the machine where all machines meet")
    max_restarts: int | None = _option(
        help="How often all ranks start again when one is lost after a first step [default: 3]"
    )
    simulate_ms: list[float] = _option(
        help="Milliseconds per batch of each rank, to simulate unequal ranks, with commas"
    )
    min_ranks: int | None = _option(
        help="With elastic: the fewest ranks that train; fewer wait for others to join [default: 1]"
    )
    elastic: bool = _option(
        help="Let ranks come and go while the others train on; needs flodl[elastic] and cadence"
    )
    exchange: Literal["float32", "bf16", "int8"] | None = _option(
        help="Send gradients, or changes of weights, as float32, bf16 or int8 [default: float32]"
    )
    micro_batch: str | None = _option(
        completer="echo auto",
        help="Compute a batch in pieces of so many samples; or auto [default: the whole batch]",
    )

    # A method of its own, so that a program with more modes can replace it.
    @field_validator("mode")
    @classmethod
    def _known_mode(cls, text: str | None) -> str | None:
        if text is None or text in NAMED_MODES or solo_device(text) is not None:
            return text
        raise ValueError(f"allowed: solo-N, {', '.join(NAMED_MODES)}")

    @field_validator(*_CHECKS)
    @classmethod
    def _fits(cls, text: str | None, info: ValidationInfo) -> str | None:
        fits, expected = _CHECKS[info.field_name or ""]
        if text is None or fits(text):
            return text
        raise ValueError(expected)

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> DdpArgs:
        if self.mode and (self.policy or self.backend):
            other = "policy" if self.policy else "backend"
            raise ValueError(f"`--mode` and `--{other}` say the same; keep one of them")
        return self

    def resolved(self) -> dict[str, dict[str, Any]]:
        """As for every :class:`FdlArgs`, without the flags of this class that were not given."""
        nothing: tuple[object, ...] = (None, False, [])
        unsaid = [{"value": value, "origin": DEFAULT} for value in nothing]
        return {
            name: found
            for name, found in super().resolved().items()
            if name not in DdpArgs.model_fields or found not in unsaid
        }

    def ddp_settings(self) -> dict[str, Any]:
        """What was given, in the words of a manifest's ``ddp:``; empty where nothing was.

        Numbers are numbers, ``speed_hint`` is a mapping, and ``auto`` stays the word.
        """
        given = {name: getattr(self, name) for name in DdpArgs.model_fields}
        # A zero has said something.
        said = {n: v for n, v in given.items() if v is not None and v is not False and v != []}
        for name in ("anchor", "ranks", "micro_batch"):
            if said.get(name, "auto") != "auto":
                said[name] = int(said[name])
        if "progressive" in said and said["progressive"] != "auto":
            said["progressive"] = said["progressive"] == "true"
        if "speed_hint" in said:
            said["speed_hint"] = _hint(said["speed_hint"])
        return said
