"""Whether a run asks for what its checkpoint can give, with the same data in the same order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torch import Tensor

from flodl import log
from flodl.checkpoint import checkpoint_metadata
from flodl.data import DataLoader
from flodl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from flodl.train.run.loop_state import Position
    from flodl.train.settings import TrainingPlan


_EPOCHS = ("epochs", "num_epochs")
"""Usual names of the number of epochs in a configuration."""


_CHOSEN = ("lr", "weight_decay", "momentum", "betas")
"""Settings of optimizers that only programs change; some optimizers adapt others by themselves."""


def check_epochs(source: Path, position: Position, plan: TrainingPlan) -> None:
    """Refuse a checkpoint that has begun more epochs than the run asks for.

    Raises:
        CheckpointError: The message names both numbers.
    """
    begun = position.epoch + (1 if position.step else 0)
    if begun <= plan.num_epochs:
        return
    config = plan.run_dir.config if plan.run_dir is not None else {}
    name = next((one for one in _EPOCHS if _value(config, one) == plan.num_epochs), None)
    more = position.epoch + 1
    remedy = f".num_epochs({more})" if name is None else _typed(config, name, more)
    raise CheckpointError(
        f"checkpoint {source} has begun epoch {begun}, and this run asks for {plan.num_epochs} "
        f"epochs in all, so nothing is left to train: use {remedy} or more, or begin a new run "
        "without resume"
    )


def check_optimizer(
    source: Path,
    built: Sequence[Mapping[str, Any]],
    optimizer: torch.optim.Optimizer,
    plan: TrainingPlan,
) -> None:
    """Refuse settings of the optimizer that the state in the checkpoint would replace.

    The configurations of both runs are compared, not the values themselves: an act on the running
    training or a schedule may have changed those.

    Args:
        source: The checkpoint.
        built: The parameter groups of the optimizer before its state was restored.
        optimizer: The optimizer with its restored state.
        plan: The training that resumes.

    Raises:
        CheckpointError: The message names the setting and both values.
    """
    asked = plan.run_dir.config if plan.run_dir is not None else {}
    saved = _recorded_config(source)
    for name in optimizer.defaults:
        if name not in asked or name not in saved:
            continue
        if name == "lr" and plan.scheduler is not None:
            continue  # the schedule of this run sets the rate, not the checkpoint
        before, now = _value(saved, name), _value(asked, name)
        # Without an effect on the optimizer, a key only has the same name as one of its settings.
        if before == now or _agree(name, built, optimizer.param_groups):
            continue
        remedy = f"use {_typed(asked, name, before)}"
        if name == "lr":
            remedy += f", or change it while it runs with fdl runs tell last lr={now}"
        else:
            remedy += ", or begin a new run without resume"
        raise CheckpointError(
            f"checkpoint {source} was trained with {name} {before}, and this run asks for {name} "
            f"{now}; a resumed training continues with the values of its checkpoint: {remedy}"
        )


def tell_ignored(
    built: Sequence[Mapping[str, Any]],
    optimizer: torch.optim.Optimizer,
    plan: TrainingPlan,
    acts: Mapping[str, Any],
) -> None:
    """Tell which values of a new optimizer have no effect, because the checkpoint has others.

    It tells nothing if something else may have changed the values before the checkpoint.

    Args:
        built: The parameter groups of the optimizer before its state was restored.
        optimizer: The optimizer with its restored state.
        plan: The training that resumes.
        acts: What people have changed while it trained.
    """
    if (
        acts
        or plan.callbacks
        or any((plan.scheduler, plan.lr_scheduler, plan.epoch_fn, plan.guards))
    ):
        return
    for name in _CHOSEN:
        if not _agree(name, built, optimizer.param_groups):
            now, before = (_plain(one[0].get(name)) for one in (optimizer.param_groups, built))
            log.msg(
                f"  {name} stays {now}, as in the checkpoint: {name}={before} of this program has "
                "no effect; an epoch_fn can set it"
            )


def _recorded_config(source: Path) -> Mapping[str, Any]:
    """Return the configuration in a checkpoint; empty if it has none."""
    try:
        config = json.loads(checkpoint_metadata(source).get("config", "{}"))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _value(config: Mapping[str, Any], name: str) -> Any:
    """Return a value of a configuration without its origin."""
    entry = config.get(name)
    return entry["value"] if isinstance(entry, dict) and "value" in entry else entry


def _typed(config: Mapping[str, Any], name: str, value: Any) -> str:
    """Return a setting as users give it: as an option if the configuration knows origins."""
    is_option = isinstance(config.get(name), dict) and not isinstance(value, list)
    return f"--{name.replace('_', '-')} {value}" if is_option else f"{name}={value}"


def _agree(
    name: str, built: Sequence[Mapping[str, Any]], restored: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the checkpoint has left a setting as the program built it."""
    return all(
        _plain(one.get(name)) == _plain(other.get(name))
        for one, other in zip(built, restored, strict=False)  # more groups are of a later time
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


SAME_DATA = "give the Trainer the data it was given before"
_POSITION = ("epoch", "batch", "generator")
"""Keys of a loader's state that change while it runs; the other keys describe its data."""
_ORDER = ("sampler", "order")
"""Keys of a loader's state that matter only inside an epoch."""


def check_same_data(where: str, saved: Any, current: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of other data.

    Args:
        where: The checkpoint, for messages.
        saved: State of the loader in it.
        current: State of the loader that would continue.

    Raises:
        CheckpointError: The data differ.
        ValueError: The state is damaged.
    """
    if not isinstance(saved, dict):
        raise ValueError("the state of its loader is not a mapping")
    others = [
        f"{key} was {saved[key]!r} and is {value!r}"
        for key, value in current.items()
        if key not in (*_POSITION, *_ORDER) and key in saved and saved[key] != value
    ]
    if others:
        raise CheckpointError(
            f"{where} belongs to a training with other data: {'; '.join(others)}. The batches that "
            f"are left would be others: {SAME_DATA}"
        )


def check_same_order(where: str, saved: Mapping[str, Any], loader: object) -> None:
    """Refuse to continue inside an epoch in another order; at the end of one, only tell it.

    Args:
        where: The checkpoint, for messages.
        saved: State of the loader in it.
        loader: The loader that would continue.

    Raises:
        CheckpointError: The batches that are left would be others.
    """
    if not isinstance(loader, DataLoader):
        return
    if problem := loader.other_order(saved):
        raise CheckpointError(
            f"{where} cannot be resumed: {problem}. Resume with the data and the sampler of the "
            "saved training, or begin a new run without resume"
        )
    before, now = saved.get("sampler"), loader.state_dict().get("sampler")
    if before not in (None, now) and "order" not in saved:
        log.warning(
            f"{where} was trained with samples in the order {before!r}; from now on it is {now!r}"
        )


def without_order(state: Any) -> Any:
    """Return the state of a part without the keys that only a loader inside an epoch has."""
    if not isinstance(state, dict):
        return state
    return {key: value for key, value in state.items() if key not in _ORDER}
