"""The ghost cluster: simulate a training on several ranks and predict its speed.

The same functions plan the windows as in a real training. The clock is virtual, so batches take no
real time.
"""

from flodl.distributed.ghost.cluster import Change as Change
from flodl.distributed.ghost.cluster import Cluster as Cluster
from flodl.distributed.ghost.cluster import GhostWindow as GhostWindow
from flodl.distributed.ghost.cluster import History as History
from flodl.distributed.ghost.cluster import simulate as simulate
from flodl.distributed.ghost.exchange import Exchange as Exchange
from flodl.distributed.ghost.prediction import Prediction as Prediction
from flodl.distributed.ghost.prediction import choose as choose
from flodl.distributed.ghost.prediction import predict as predict
