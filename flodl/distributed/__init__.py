"""Training on several ranks: launching, sharing, averaging."""

from typing import TYPE_CHECKING

from flodl.lazy import lazily as _lazily

if TYPE_CHECKING:
    from flodl.distributed.ghost import Cluster as Cluster
    from flodl.distributed.ghost import predict as predict
    from flodl.distributed.planning.elche import ElCheConfig as ElCheConfig
    from flodl.distributed.planning.schedule import ScheduleConfig as ScheduleConfig
    from flodl.distributed.runner import this_group as this_group

_NAMES = {
    "ghost": ("Cluster", "predict"),
    "planning.elche": ("ElCheConfig",),
    "planning.schedule": ("ScheduleConfig",),
    "runner": ("this_group",),
}

__getattr__, __dir__ = _lazily(__name__, _NAMES)
