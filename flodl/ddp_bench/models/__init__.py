"""The models of the benchmark, one file per family."""

from flodl.ddp_bench.models.images import CONV_AE, LENET, LOGISTIC, MLP
from flodl.ddp_bench.models.resnet import RESNET, RESNET_GRAPH
from flodl.ddp_bench.models.task import Task as Task
from flodl.ddp_bench.models.text import CHAR_RNN, GPT_NANO

TASKS: dict[str, Task] = {
    task.name: task
    for task in (LOGISTIC, MLP, LENET, RESNET, RESNET_GRAPH, CHAR_RNN, GPT_NANO, CONV_AE)
}
"""All tasks by name, the cheap ones first."""
