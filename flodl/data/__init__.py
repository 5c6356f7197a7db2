"""Data sets, samplers and the loader that turns them into batches."""

from flodl.data.batch import Batch as Batch
from flodl.data.cifar import Cifar10 as Cifar10
from flodl.data.dataset import (
    BatchDataSet as BatchDataSet,
    DataSet as DataSet,
    TensorDataSet as TensorDataSet,
)
from flodl.data.iterable import IterableEpoch as IterableEpoch, IterableLoader as IterableLoader
from flodl.data.loader import (
    DataLoader as DataLoader,
    EpochIterator as EpochIterator,
    LoaderState as LoaderState,
)
from flodl.data.memmap import MemmapDataSet as MemmapDataSet
from flodl.data.mnist import Mnist as Mnist, digits as digits
from flodl.data.sampler import (
    RandomSampler as RandomSampler,
    Sampler as Sampler,
    SequentialSampler as SequentialSampler,
)
from flodl.data.shakespeare import Shakespeare as Shakespeare
