from .ghost import (
    Cluster as Cluster,
    predict as predict,
)
from .launching.environments import (
    this_group as this_group,
)
from .planning.elche import (
    ElCheConfig as ElCheConfig,
)
from .planning.scheduler import (
    ScheduleConfig as ScheduleConfig,
)
