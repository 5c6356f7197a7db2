"""What may stand in a manifest: keys, types and ranges.

The models only judge. The values that travel on are the nodes, which remember their places; see
:mod:`fdl.manifest.check` for the words a user reads.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
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


def _parent(value: object) -> object:
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    kinds = {bool: " (a boolean)", int: " (a number)", float: " (a number)"}
    demand = "must be the path of the manifest to inherit from"
    raise _unsuitable(demand, kinds.get(type(value), ""))


def _variable(value: object) -> object:
    if isinstance(value, dict | list):
        raise _refused("is one variable, so it holds text, a number, true or false")
    return value


def _variable_name(value: str) -> str:
    if not value or "=" in value:
        raise _refused("names no variable: a name is not empty and holds no `=`")
    return value


def _env_files(value: object) -> object:
    items = value if isinstance(value, list) else [value]
    if value is None or all(_is_env_file(item) for item in items):
        return value
    raise _unsuitable("must be a path, or a list of paths and of `{path: FILE, required: false}`")


def _is_env_file(item: object) -> bool:
    if isinstance(item, dict):
        return (
            isinstance(item.get("path"), str)
            and isinstance(item.get("required", True), bool)
            and item.keys() <= {"path", "required"}
        )
    return isinstance(item, str) and bool(item.strip())


class _Strict(BaseModel):
    """Unknown keys refused, nothing converted: ``"5"`` is no number and 5 is no text."""

    # The docstrings of the keys are what an editor shows for them.
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _one_of(*alternatives: dict[str, Any]) -> WithJsonSchema:
    """What an editor takes for right, where a function judges."""
    return WithJsonSchema({"anyOf": [*alternatives, {"type": "null"}]})


_SCALAR: dict[str, Any] = {"type": ["string", "number", "boolean"]}
_ENV_FILE: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "required": {"type": "boolean"}},
            "required": ["path"],
            "additionalProperties": False,
        },
    ]
}

Mode = Annotated[
    Any,
    PlainValidator(_mode),
    _one_of({"enum": list(_NAMED_MODES)}, {"type": "string", "pattern": "^solo-[0-9]+$"}),
]
AutoOrWhole = Annotated[
    Any, PlainValidator(_auto_or_whole), _one_of({"const": "auto"}, {"type": "integer"})
]
AutoOrSwitch = Annotated[
    Any, PlainValidator(_auto_or_switch), _one_of({"const": "auto"}, {"type": "boolean"})
]
Option = Annotated[
    Any, PlainValidator(_option), _one_of(_SCALAR, {"type": "array", "items": _SCALAR})
]
Variables = dict[
    Annotated[str, AfterValidator(_variable_name)],
    Annotated[Any, PlainValidator(_variable), _one_of(_SCALAR)],
]
EnvFiles = Annotated[
    Any, PlainValidator(_env_files), _one_of(_ENV_FILE, {"type": "array", "items": _ENV_FILE})
]
Parent = Annotated[Any, PlainValidator(_parent), _one_of({"type": "string", "pattern": "\\S"})]


class SpeedHint(_Strict):
    """Which rank is slow, and how many times slower."""

    slow_rank: Annotated[int, Field(ge=0)]
    """The slowest rank."""

    ratio: Annotated[float, Field(gt=0)]
    """How many times as long it takes for a batch as the fastest."""


class Ddp(_Strict):
    """How the work is spread over devices."""

    mode: Mode = None
    """`solo-N` trains on device N alone; else a policy, or backend and policy in one word."""

    policy: Literal["sync", "cadence", "async"] | None = None
    """When ranks average: after every step, after a stretch each can finish in time, or freely."""

    backend: Literal["nccl", "cpu"] | None = None
    """Averaging on the GPUs (`nccl`) or through main memory (`cpu`)."""

    anchor: AutoOrWhole = None
    """Batches the slowest rank runs between two averages; `auto` finds it out."""

    max_anchor: Annotated[int, Field(ge=0)] | None = None
    """Upper limit of an automatic `anchor` (the framework's own: 200)."""

    overhead_target: float | None = None
    """Share of the time that averaging may take (the framework's own: 0.10)."""

    divergence_threshold: float | None = None
    """How far ranks may drift apart before they average more often (the framework's own: 0.05)."""

    max_batch_diff: Annotated[int, Field(ge=0)] | None = None
    """Batches a fast rank may be ahead of a slow one; 0 is lockstep, null is no limit."""

    max_grad_norm: float | None = None
    """Gradients longer than this are scaled down to it."""

    snapshot_timeout: int | None = None
    """Seconds to wait for a rank's parameters, with the `cpu` backend (the framework's own: 5)."""

    checkpoint_every: int | None = None
    """Epochs between two checkpoints."""

    progressive: AutoOrSwitch = None
    """Whether epochs are handed out in growing parts; `auto` decides by the devices."""

    speed_hint: SpeedHint | None = None
    """What is known about the speed of the devices before the first measurement."""

    partition_ratios: list[float] | None = None
    """Share of the data for each rank, in their order."""

    lr_scale_ratio: float | None = None
    """How far the learning rate grows with the number of ranks (the framework's own: 1.0)."""

    timeline: bool | None = None
    """Whether to record what every rank does when."""

    @field_validator("policy", "backend")
    @classmethod
    def _excluded_by_mode(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("mode") is not None:
            raise _refused("cannot stand beside `mode`, which says the same; keep one of them")
        return value


class Training(_Strict):
    """The length and pace of a training."""

    epochs: int | None = None
    """Passes over the data: `--epochs`."""

    batch_size: Annotated[int, Field(ge=1)] | None = None
    """Samples per step: `--batch-size`."""

    batches_per_epoch: int | None = None
    """Steps that make an epoch, in place of all the data: `--batches`."""

    lr: float | None = None
    """Learning rate: `--lr`."""

    seed: int | None = None
    """Start of the random numbers: `--seed`."""


class Output(_Strict):
    """Where a run writes, and where it can be watched."""

    dir: str | None = None
    """Folder that receives the folder of each run: `--output`."""

    monitor: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of the page that shows the run while it lasts: `--monitor`."""

    timeline: bool | None = None
    """Whether to record what every rank does when: `--timeline`."""


class Command(_Strict):
    """One entry of ``commands``; which keys go together is judged when it is resolved."""

    description: str | None = None
    """One line for lists and help pages."""

    run: str | None = None
    """A shell command; arguments follow on the command line behind `--`."""

    append: str | None = None
    """Arguments that always go with `run`; `--no-append` leaves them out."""

    path: str | None = None
    """A folder with an fdl.yml of its own; without `run` and `path`, the folder of this name."""

    entry: str | None = None
    """Program that takes the place of the one in the folder's fdl.yml."""

    docker: str | None = None
    """Docker compose service in which `run` runs."""

    env: Variables | None = None
    """Environment variables of the command; those of your shell are stronger."""

    env_file: EnvFiles | None = None
    """Files of `NAME=value` lines with further variables, stronger than `env`."""

    ddp: Ddp | None = None
    """How the preset spreads the work over devices."""

    training: Training | None = None
    """Length and pace of the preset's training."""

    output: Output | None = None
    """Where the preset's run writes."""

    options: dict[str, Option] | None = None
    """Further flags of the preset: `model: big` is `--model big`, `fast: true` is `--fast`."""


class Root(_Strict):
    """A whole manifest, of a project or of a sub-command's directory."""

    description: str | None = None
    """One line about the project or the folder."""

    commands: dict[str, Command | None] | None = None
    """Name -> what it does: a shell command (`run`), a folder (`path`), or a preset of `entry`."""

    inherit_from: Annotated[Parent, Field(alias="inherit-from")] = None
    """Another manifest below this one: what is said here is stronger."""

    entry: str | None = None
    """The program of this folder: `python main.py`. It gets the settings below as flags."""

    docker: str | None = None
    """Docker compose service in which `entry` runs."""

    env: Variables | None = None
    """Environment variables of all commands; those of your shell are stronger."""

    env_file: EnvFiles | None = None
    """Files of `NAME=value` lines with further variables, stronger than `env`."""

    ddp: Ddp | None = None
    """How the work is spread over devices."""

    training: Training | None = None
    """Length and pace of a training."""

    output: Output | None = None
    """Where a run writes, and where it can be watched."""

    arg_name: Annotated[str | None, Field(alias="arg-name")] = None
    """What the help page calls the preset: `<recipe>` in place of `<preset>`."""

    # Not named `schema`: pydantic's base class has a method of that name.
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """The arguments of `entry`, for a program that cannot tell them itself (`--fdl-schema`)."""

    compile: bool | None = None
    """Whether fdl may start `entry` to ask for its arguments, though it cannot see that it may."""


SECTIONS: dict[str, type[BaseModel]] = {"ddp": Ddp, "training": Training, "output": Output}


def keys_of(model: type[BaseModel]) -> list[str]:
    """The keys a mapping of this kind may hold, as written in a manifest."""
    return [field.alias or name for name, field in model.model_fields.items()]
