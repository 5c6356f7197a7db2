"""What may stand in a manifest: keys, types and ranges.

The models only judge. The values that travel on are the nodes, which remember their places; see
:mod:`fdl.manifest.check` for the words a user reads.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from fdl.suggest import nearest

_NAMED_MODES = (
    "sync",
    *(f"nccl-{policy}" for policy in ("sync", "cadence", "async")),
    *(f"cpu-{policy}" for policy in ("sync", "cadence", "async")),
)


def _refused(problem: str) -> PydanticCustomError:
    """The key, or what stands under it, cannot be there at all."""
    # Braces in the template would be taken for placeholders, so the words travel as a value.
    return PydanticCustomError("refused", "{problem}", {"problem": problem})


def _unsuitable(demand: str, remedy: str = "") -> PydanticCustomError:
    """The value is not what the key demands; the words tell what stands there instead."""
    context = {"demand": demand, "remedy": remedy}
    return PydanticCustomError("unsuitable", "{demand}{remedy}", context)


def _mode(value: object) -> object:
    if value is None or value in _NAMED_MODES:
        return value
    if isinstance(value, str) and re.fullmatch(r"solo-[0-9]+", value):
        return value
    known = ", ".join(f"`{name}`" for name in _NAMED_MODES)
    close = nearest(value, (*_NAMED_MODES, "solo-0")) if isinstance(value, str) else None
    guess = f"; did you mean `{close}`?" if close else ""
    raise _unsuitable(f"must be `solo-N` for one device, or one of {known}", guess)


def _auto_or_whole(value: object) -> object:
    if value is None or value == "auto" or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise _unsuitable("must be `auto` or a whole number")


def _auto_or_switch(value: object) -> object:
    if value is None or value == "auto" or isinstance(value, bool):
        return value
    raise _unsuitable("must be `auto`, true or false")


def _option(value: object) -> object:
    if isinstance(value, dict):
        raise _refused("cannot hold a mapping: an option is a scalar or a list")
    if isinstance(value, list) and any(
        item is None or isinstance(item, dict | list) for item in value
    ):
        raise _refused("may only list scalars, no nulls, lists or mappings")
    return value


def _no_inheritance(value: object) -> object:
    if value is not None:
        raise _refused(
            "is not available: this version has neither overlays nor inheritance; "
            "copy what is needed into this file and remove the key"
        )
    return value


class _Strict(BaseModel):
    """Unknown keys refused, nothing converted: ``"5"`` is no number and 5 is no text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SpeedHint(_Strict):
    """Which rank is slow, and how many times slower."""

    slow_rank: Annotated[int, Field(ge=0)]
    ratio: Annotated[float, Field(gt=0)]


class Ddp(_Strict):
    """How the work is spread over devices."""

    mode: Annotated[Any, PlainValidator(_mode)] = None
    policy: Literal["sync", "cadence", "async"] | None = None
    backend: Literal["nccl", "cpu"] | None = None
    anchor: Annotated[Any, PlainValidator(_auto_or_whole)] = None
    max_anchor: Annotated[int, Field(ge=0)] | None = None
    overhead_target: float | None = None
    divergence_threshold: float | None = None
    max_batch_diff: Annotated[int, Field(ge=0)] | None = None
    max_grad_norm: float | None = None
    snapshot_timeout: int | None = None
    checkpoint_every: int | None = None
    progressive: Annotated[Any, PlainValidator(_auto_or_switch)] = None
    speed_hint: SpeedHint | None = None
    partition_ratios: list[float] | None = None
    lr_scale_ratio: float | None = None
    timeline: bool | None = None

    @field_validator("policy", "backend")
    @classmethod
    def _excluded_by_mode(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("mode") is not None:
            raise _refused("cannot stand beside `mode`, which says the same; keep one of them")
        return value


class Training(_Strict):
    """The length and pace of a training."""

    epochs: int | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    batches_per_epoch: int | None = None
    lr: float | None = None
    seed: int | None = None


class Output(_Strict):
    """Where a run writes, and where it can be watched."""

    dir: str | None = None
    monitor: Annotated[int, Field(ge=0, le=65535)] | None = None
    timeline: bool | None = None


class Command(_Strict):
    """One entry of ``commands``; which keys go together is judged when it is resolved."""

    description: str | None = None
    run: str | None = None
    append: str | None = None
    path: str | None = None
    entry: str | None = None
    docker: str | None = None
    ddp: Ddp | None = None
    training: Training | None = None
    output: Output | None = None
    options: dict[str, Annotated[Any, PlainValidator(_option)]] | None = None


class Root(_Strict):
    """A whole manifest, of a project or of a sub-command's directory."""

    description: str | None = None
    commands: dict[str, Command | None] | None = None
    inherit_from: Annotated[
        Any, PlainValidator(_no_inheritance), Field(alias="inherit-from")
    ] = None  # fmt: skip
    entry: str | None = None
    docker: str | None = None
    ddp: Ddp | None = None
    training: Training | None = None
    output: Output | None = None
    arg_name: Annotated[str | None, Field(alias="arg-name")] = None
    # Not named `schema`: pydantic's base class has a method of that name.
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    compile: bool | None = None


SECTIONS: dict[str, type[BaseModel]] = {"ddp": Ddp, "training": Training, "output": Output}


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys a mapping of this kind may hold, as written in a manifest."""
    return [field.alias or name for name, field in model.model_fields.items()]
