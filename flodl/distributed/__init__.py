"""Training on several ranks: launching, sharing, averaging."""

from typing import TYPE_CHECKING

from flodl.lazy import lazily

if TYPE_CHECKING:
    from flodl.distributed.ghost import Cluster as Cluster
    from flodl.distributed.ghost import predict as predict
    from flodl.distributed.launching.environments import this_group as this_group
    from flodl.distributed.planning.elche import ElCheConfig as ElCheConfig
    from flodl.distributed.planning.scheduler import ScheduleConfig as ScheduleConfig

_NAMES = {
    "ghost": ("Cluster", "predict"),
    "launching.environments": ("this_group",),
    "planning.elche": ("ElCheConfig",),
    "planning.scheduler": ("ScheduleConfig",),
}

__getattr__, __dir__ = lazily(__name__, _NAMES)
