"""How the steps of a training are computed: engine, precision, learning rate, guards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from flodl.data.adapters import is_iterable
from flodl.data.iterable import remedy_for
from flodl.nn.amp import GradScaler
from flodl.setting import Above, OneOf, Settings, UnfitError, Whole, is_function, setting, switch
from flodl.train.observers.guards.guard import Guards, guards_outside
from flodl.train.step import ENGINES
from flodl.train.step.learning_rate import steps_by_itself
from flodl.train.step.precision import Precision
from flodl.train.step.torch_schedule import SchedulerSettings

if TYPE_CHECKING:
    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.precision import LossScaler


def _scaler(scaler: Any) -> Any:
    lacking = [name for name in ("scale", "step", "update") if not hasattr(scaler, name)]
    if lacking:
        raise ValueError(
            f"grad_scaler={type(scaler).__name__}: it has no method {', '.join(lacking)}; give "
            "a torch.amp.GradScaler or a flodl.GradScaler"
        )
    return scaler


def _schedule_factory(factory: Any) -> Any:
    if isinstance(factory, LRScheduler) or (
        isinstance(factory, type) and issubclass(factory, LRScheduler)
    ):
        raise ValueError(steps_by_itself(factory))
    return is_function(factory)


def _decay(decay: float) -> float:
    if not 0.0 <= decay < 1.0:
        raise UnfitError("it must be at least 0 and below 1, such as 0.999")
    return float(decay)


@dataclass(frozen=True, kw_only=True)
class ComputeSettings(Settings):
    """How the steps of a training are computed."""

    engine: str = setting("eager", OneOf(ENGINES), takes="name", key="training.engine")
    """How a Trainer computes a step: eager is a plain loop; auto, compiled, cuda_graph are faster.

    ``"eager"`` equals a plain loop bit for bit. The others give the same numbers up
    to rounding. ``"auto"`` calls the program exactly as often as ``"eager"`` does. It measures
    tunings during the steps of the training and keeps those that are faster. Later runs of the
    program use its decision from their first step, so they repeat each other. The tunings are:

    - a fused optimizer step
    - another memory layout of values between image layers
    - another library for matrix products
    - fewer threads

    ``"auto"`` compiles only after :meth:`pure_step`.
    """
    pure_step: bool = switch()
    """Declare that a step changes only the model and the optimizer, so it may run on copies.

    This lets the engine ``"auto"`` compile the step as well, and repeat it as a CUDA graph on a
    GPU. Compiling calls ``train_fn`` a few more times, with copies of the model. Do not declare
    this if ``train_fn`` changes anything else: a queue, a counter, a file, a second model.
    """
    deterministic: bool = switch()
    """Give the same bits in every run, with the eager engine and deterministic algorithms only.

    No measurement decides anything, and neither does a decision kept from an earlier run. An
    operation without a deterministic algorithm raises ``RuntimeError``.
    """
    accumulate: int = setting(1, Whole(), takes="batches")
    """Make one optimizer step from this many batches: the step uses their mean loss.

    The last step of an epoch uses the remaining batches. Schedule and ``checkpoint_steps`` count
    optimizer steps.
    """
    autocast: torch.dtype | None = setting(
        None, OneOf((torch.bfloat16, torch.float16)), takes="dtype"
    )
    """Compute the forward pass in bfloat16 or float16, where torch considers that safe.

    float16 adds a :class:`~flodl.GradScaler`, see :meth:`grad_scaler`.
    """
    precision: Precision | None = setting(None, made=Precision.named)
    """Choose the precision of a step by name: bf16, fp16 or 32; the weights stay in float32.

    ``bf16`` (or ``bf16-mixed``) and ``fp16`` (or ``16-mixed``) compute the forward pass and the
    loss under :meth:`autocast`. Checkpoints do not change. bfloat16 is fast on GPUs since Ampere,
    and on processors with AMX, ``avx512_bf16`` or ARM's ``bf16``. Other processors emulate it
    slowly; a warning then says so.

    A new training prints the loss of its first batch in this precision and in float32. For that,
    ``train_fn`` runs twice more, before the first step. It gets copies of the model in evaluation
    mode and of the batch. Random generators and buffers are restored.

    Args:
        name: ``"bf16"``, ``"fp16"``, ``"32"``, or one of Lightning's names for them.
        compare: False leaves the comparison out, for a ``train_fn`` that changes anything else: a
            queue, a counter, a file.

    Raises:
        ValueError: There is no such precision, or it needs weights of another type.
    """
    scaler: LossScaler | torch.amp.GradScaler | None = setting(
        None, _scaler, takes="scaler", method="grad_scaler"
    )
    """Scale the loss with this scaler; None turns scaling off, also in float16.

    A ``torch.amp.GradScaler`` does what it does in a plain loop: the gradients are unscaled,
    clipped with ``max_grad_norm`` and used. Checkpoints keep its state.

    Raises:
        ValueError: It lacks a method of a scaler.
    """
    max_grad_norm: float | None = setting(
        None, Above(), takes="max_norm", key="max_grad_norm", usual="no limit"
    )
    """Largest 2-norm of all gradients of a step. Longer gradients are scaled down."""
    scheduler: Callable[[int], Schedule] | None = setting(None, _schedule_factory, takes="factory")
    """Set the learning rate by step: ``factory(world_size)`` makes an object with ``lr(step)``.

    For schedulers of torch use :meth:`lr_scheduler`.
    """
    lr_scheduler: SchedulerSettings | None = setting(None, made=SchedulerSettings)
    """Let a scheduler of torch set the learning rate.

    Examples::

        .lr_scheduler(lambda optimizer: StepLR(optimizer, 30))
        .lr_scheduler(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=900), "step")
        .lr_scheduler(lambda optimizer: ReduceLROnPlateau(optimizer), monitor="loss")

    Checkpoints hold its state, so a resumed training continues with the same rates. A step that the
    gradient scaler of float16 skips does not count. With several ranks, each rank has its own
    scheduler, and all have the same rates. ``interval="step"`` then counts the batches of all
    ranks, as ``.scheduler(…)`` does.
    """
    ema: float | None = setting(None, _decay, takes="decay")
    """Average the weights over the steps, and evaluate with the average.

    ``model.fdl`` of the run directory holds the average; ``last.fdl`` holds both. On the handle,
    ``join()`` returns the weights of the last step and ``average()`` returns the average.
    """
    guards: Guards | None = setting(None, made=Guards, switch=True)
    """Survive bad batches: go back, leave them out, continue; off by default.

    When a loss is nan, infinite or a spike, the training goes back to a snapshot in host memory.
    The same steps follow again, without the batches that showed it. Random numbers repeat, so the
    steps before these batches are the same to the bit. The second attempt at one place leaves out
    more batches before it, and lowers the learning rate. After the last attempt the training ends
    with :class:`~flodl.errors.DivergedError`, which names the first module that is not finite. To
    find it, the guard calls ``train_fn`` again. ``spike=None`` looks for nan and infinities only.

    A training without setbacks gives the same bits as one without guards. The training tutorial
    says what callbacks see, and what the run directory records.
    """


def settled_computing(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with what others imply: guards of a manifest, autocast, a scaler.

    Raises:
        ValueError: Two settings contradict each other.
    """
    engine = settings.get("engine", "eager")
    if settings.get("deterministic") and engine != "eager":
        raise ValueError(
            f"engine={engine!r} together with deterministic(): only the eager engine repeats "
            "itself to the bit; leave one of the two out"
        )
    if settings.get("lr_scheduler") is not None:
        _check_schedules(settings)
    settings = {"guards": guards_outside(), **settings}
    if settings["guards"] is not None:
        _check_guards(settings)
    precision: Precision | None = settings.get("precision")
    if precision is not None:
        given = settings.get("autocast", precision.autocast)
        if given != precision.autocast:
            raise ValueError(
                f".precision({precision.name!r}) and .autocast({given}) contradict each other: "
                "leave one of them out"
            )
        settings["autocast"] = given
    if settings.get("autocast") == torch.float16:
        settings.setdefault("scaler", GradScaler())
    return settings


def _check_schedules(settings: Mapping[str, Any]) -> None:
    """Refuse two settings of the learning rate, and one that the engine cannot use."""
    if settings.get("scheduler") is not None:
        raise ValueError(
            ".scheduler(…) and .lr_scheduler(…) both set the learning rate: leave one of them out"
        )
    if settings.get("engine") == "cuda_graph":
        raise ValueError(
            "engine='cuda_graph' with .lr_scheduler(…): a captured step keeps its learning rate; "
            "use .engine('auto'), or a schedule of flodl.nn.schedule with .scheduler(…)"
        )


def _check_guards(settings: Mapping[str, Any]) -> None:
    """Refuse what guards cannot take back."""
    problem = ""
    if is_iterable(settings["dataset"]):
        problem = (
            "data that can only be iterated cannot go back inside an epoch; "
            f"{remedy_for(settings['dataset'])}"
        )
    elif settings.get("sharded"):
        problem = "a snapshot holds a whole model, and .sharded() spreads it over the ranks"
    elif settings.get("engine") == "cuda_graph":
        problem = (
            "engine='cuda_graph' repeats one captured step in fixed memory, which a snapshot "
            "cannot replace; use .engine('auto')"
        )
    elif settings.get("lr_scheduler") is not None and settings["guards"].lower_lr != 1:
        problem = (
            ".lr_scheduler(…) sets the learning rate itself, so that a guard cannot lower it; add "
            "lower_lr=1, or use .scheduler(…)"
        )
    if problem:
        raise ValueError(f"guards: {problem}; or leave the guards out")
