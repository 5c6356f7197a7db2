"""What a training reads, how often, and where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.utils.data

from flodl import log
from flodl.data.adapters import as_batch_data_set, is_iterable
from flodl.data.iterable import check_epochs, settled_batch_size
from flodl.data.seeds import seed_value
from flodl.setting import Settings, Whole, setting, switch

_DEVICE = "the first usable CUDA device, else the CPU"
_REQUIRED = ("dataset", "batch_size", "num_epochs")


def _cached(most_bytes: Any) -> bool | int:
    return most_bytes if isinstance(most_bytes, bool) else Whole()(most_bytes)


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """What a training reads, how often, and where."""

    dataset: Any = setting(takes="dataset", kind="object")
    """Train on this data set.

    * Tensors or arrays: ``(X, Y)``, ``{"x": X, "y": Y}``, a ``TensorDataset`` of torch, NumPy
      arrays, or the data sets of :mod:`flodl.data`. They stay in memory.
    * Samples with numbers, which can be read in any order: a ``DataSet``, a ``BatchDataSet``, a
      map-style data set of torch, a ``Dataset`` of the ``datasets`` library. Each sample is read
      once per epoch.
    * On one device, data that can only be iterated. The batches of a ``DataLoader`` of torch are
      handed over as they are, and so are those of any iterable with a function as
      :meth:`batch_size`. Samples are put into batches in their order: those of an
      ``IterableDataset``, of a streamed data set of the ``datasets`` library, or of a function that
      returns an iterator. See :class:`~flodl.data.IterableLoader`.
    """
    batch_size: int | None
    """Samples per batch; None if the data are batches that do not state one size."""
    count_samples: Callable[[Any], int] | None = None
    """Returns the number of samples of a batch; only for data that are batches."""
    num_epochs: int = setting(check=Whole(), takes="num_epochs")
    """Set the number of passes through the data set."""
    seed: int = setting(42, seed_value, takes="seed")
    """Seed the generators of Python, NumPy and torch, and the order of the samples."""
    device: torch.device | str | None = setting(None, takes="device", usual=_DEVICE)
    """Train on this device."""
    loader_options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the loader."""
    cache: bool | int = setting(False, _cached, takes="most_bytes", given=True)
    """Keep samples in memory once the first epoch has read them; later epochs reuse them.

    A random transform in the data set then draws once per sample instead of once per epoch.

    Args:
        most_bytes: Limit on the memory of this host, for all its ranks together; True for half of
            the available memory. Samples that do not fit are read in each epoch.
    """
    sharded: bool = switch()
    """Let FSDP share the model among the ranks; the model factory calls ``fully_shard``.

    - Each rank trains on the data set it is given. Give each rank its own part of the data; all
      parts must be equally long.
    - FSDP averages the gradients. Besides, the ranks exchange only checkpoints, and what they are
      asked for.
    - For a checkpoint all ranks gather the tensors, and the lowest rank writes its run directory.
      The file holds the buffers of the lowest rank, because FSDP does not share buffers.
    - A signal to one rank, an act of ``fdl runs tell``, and ``run.stop`` of a callback reach all
      ranks. They act one step later, all after the same step.
    """


def settled_data(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the batch size of a torch ``DataLoader``, if that has one.

    Raises:
        ValueError: A required setting is missing, or the data do not fit the others.
    """
    dataset = settings.get("dataset")
    if is_iterable(dataset):
        size = settled_batch_size(dataset, settings.get("batch_size"))
        if size is not None or isinstance(dataset, torch.utils.data.DataLoader):
            settings = settings | {"batch_size": size}
        check_epochs(dataset, settings.get("num_epochs", 1))
    missing = [name for name in _REQUIRED if name not in settings]
    if missing:
        calls = ", ".join(f".{name}(…)" for name in missing)
        raise ValueError(f"Trainer.builder needs {calls} before .run()")
    if is_iterable(dataset):
        return settings
    if settings.get("count_samples") is not None:
        raise ValueError(
            f"batch_size is a function, but a {type(dataset).__name__} has samples and no batches: "
            "give .batch_size(…) a number"
        )
    size, samples = settings["batch_size"], len(as_batch_data_set(dataset))
    if 0 < samples < size:
        problem = f"batch_size={size} is larger than the data set ({samples} samples): "
        if settings.get("loader_options", {}).get("drop_last", False):
            raise ValueError(
                f"{problem}no batch would ever be full; choose .batch_size({samples}) or less, or "
                "leave drop_last out"
            )
        log.warning(f"{problem}each epoch is one batch of {samples}")
    return settings
