from .ghost import (
    Cluster as Cluster,
    predict as predict,
)
from .planning.elche import (
    ElCheConfig as ElCheConfig,
)
from .planning.schedule import (
    ScheduleConfig as ScheduleConfig,
)
from .runner import (
    this_group as this_group,
)
