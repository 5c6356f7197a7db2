"""The flags of a program whose ranks share the work: those that ``ddp:`` of a manifest becomes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import field_validator, model_validator

from fdl.args._base import FdlArgs
from fdl.args._fields import option
from fdl.args._record import DEFAULT
from fdl.manifest.schema import NAMED_MODES, is_endpoint, node_range, solo_device


class DdpArgs(FdlArgs):
    """Base of the arguments of a program that trains on several devices.

    A program adds its own, and hands on what was given::

        class Args(DdpArgs):
            \"\"\"Train a classifier.\"\"\"

            epochs: int = option(default=10, help="Passes over the data")

        args = Args.parse_or_schema()
        Trainer.builder(...).ddp(args.ddp_settings())

    Every flag is absent by default, so that what the program itself has set stands. ``fdl`` acts on
    ``--ranks``, ``--nodes``, ``--rdzv`` and ``--max-restarts`` before the program starts.
    """

    mode: str | None = option(
        help="solo-N for one device, auto, sync, or backend and policy in one word: nccl-async"
    )
    policy: Literal["sync", "cadence", "async", "auto"] | None = option(
        help="When the ranks average"
    )
    backend: Literal["nccl", "cpu"] | None = option(
        help="Average on the GPUs, or through main memory"
    )
    anchor: str | None = option(help="Batches of the slowest rank between averages, or auto")
    max_anchor: int | None = option(help="Upper limit of the anchor")
    overhead_target: float | None = option(help="Share of the time that averaging may take")
    divergence_threshold: float | None = option(
        help="Distance between ranks at which they average more often"
    )
    no_divergence_guard: bool = option(help="Let ranks drift apart unwatched")
    max_batch_diff: int | None = option(help="Batches a rank may be ahead of another; 0: lockstep")
    max_overshoot: int | None = option(help="Batches a rank may train while an average arrives")
    max_grad_norm: float | None = option(help="Gradients longer than this are scaled down to it")
    snapshot_timeout: float | None = option(help="Seconds to wait for a late rank (backend cpu)")
    checkpoint_every: int | None = option(help="Epochs between two checkpoints")
    progressive: Literal["auto", "true", "false"] | None = option(
        help="Hand out batches as ranks use them up"
    )
    speed_hint: str | None = option(help="Slow rank and how many times slower it is: 1:2.5")
    partition_ratios: list[float] = option(help="Share of the data for each rank")
    lr_scale_ratio: float | None = option(
        help="How far the learning rate grows with the number of ranks"
    )
    timeline: bool = option(help="Record what every rank does when")
    ranks: str | None = option(help="Processes on this machine: a number, or auto")
    nodes: str | None = option(help="Machines that take part: 2, or 1:2 for one or two")
    rdzv: str | None = option(help="Where the machines meet: host:port of one of them")
    max_restarts: int | None = option(help="Restarts of all ranks when one is lost")
    simulate_ms: list[float] = option(help="Milliseconds a batch of each rank is made to last")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Let help pages show the program's own arguments first."""
        super().__pydantic_init_subclass__(**kwargs)
        shared = DdpArgs.model_fields.keys()
        cls._parameters = tuple(sorted(cls._parameters, key=lambda one: one.field in shared))

    @field_validator("mode")
    @classmethod
    def _known_mode(cls, text: str | None) -> str | None:
        if text is None or text in NAMED_MODES or solo_device(text) is not None:
            return text
        raise ValueError(f"allowed: solo-N, {', '.join(NAMED_MODES)}")

    @field_validator("anchor", "ranks")
    @classmethod
    def _auto_or_whole(cls, text: str | None) -> str | None:
        if text is None or text == "auto" or (node_range(text) and ":" not in text):
            return text
        raise ValueError("expected auto or a whole number from 1")

    @field_validator("nodes")
    @classmethod
    def _known_range(cls, text: str | None) -> str | None:
        if text is None or node_range(text):
            return text
        raise ValueError("expected a whole number from 1, or a range such as 1:2")

    @field_validator("rdzv")
    @classmethod
    def _known_endpoint(cls, text: str | None) -> str | None:
        if text is None or is_endpoint(text):
            return text
        raise ValueError("expected a host and a port")

    @field_validator("speed_hint")
    @classmethod
    def _known_hint(cls, text: str | None) -> str | None:
        if text is not None:
            _hint(text)
        return text

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> DdpArgs:
        if self.mode and (self.policy or self.backend):
            other = "policy" if self.policy else "backend"
            raise ValueError(f"`--mode` and `--{other}` say the same; keep one of them")
        return self

    def resolved(self) -> dict[str, dict[str, Any]]:
        """As for every :class:`FdlArgs`, without the flags of this class that nobody has given."""
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
        for name in ("anchor", "ranks"):
            if said.get(name, "auto") != "auto":
                said[name] = int(said[name])
        if "progressive" in said and said["progressive"] != "auto":
            said["progressive"] = said["progressive"] == "true"
        if "speed_hint" in said:
            said["speed_hint"] = _hint(said["speed_hint"])
        return said


def _hint(text: str) -> dict[str, Any]:
    """The mapping that a hint such as ``1:2.5`` stands for.

    Raises:
        ValueError: It is none.
    """
    rank, _, ratio = text.partition(":")
    try:
        hint = {"slow_rank": int(rank), "ratio": float(ratio)}
    except ValueError:
        hint = {"slow_rank": -1, "ratio": 0.0}
    if hint["slow_rank"] < 0 or not 0 < hint["ratio"] < float("inf"):
        raise ValueError("expected RANK:RATIO, such as 1:2.5")
    return hint
