"""Whether a training resumes with the data of its checkpoint, in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flodl import log
from flodl.data import DataLoader
from flodl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
