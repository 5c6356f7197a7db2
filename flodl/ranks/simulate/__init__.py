"""The ghost cluster: simulate a training on several ranks and predict its speed.

The same functions plan the windows as in a real training. The clock is virtual, so batches take no
real time.
"""

from flodl.ranks.simulate.cluster import (
    Change as Change,
    Cluster as Cluster,
    Exchange as Exchange,
    GhostWindow as GhostWindow,
    History as History,
    Work as Work,
    simulate as simulate,
)
from flodl.ranks.simulate.prediction import (
    Prediction as Prediction,
    choose as choose,
    predict as predict,
)
