from .launch.join import (
    this_group as this_group,
)
from .planning.elche import (
    ElCheConfig as ElCheConfig,
)
from .planning.schedule import (
    ScheduleConfig as ScheduleConfig,
)
from .simulate import (
    Cluster as Cluster,
    predict as predict,
)
