"""The ghost cluster: a training of many ranks on a virtual clock, and how fast it would be.

The windows are planned by the very functions that plan real ones; only the batches take no time.
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
