"""Data sets, samplers and the loader that turns them into batches."""

from flodl.data.batch import Batch as Batch
from flodl.data.dataset import BatchDataSet as BatchDataSet
from flodl.data.dataset import DataSet as DataSet
from flodl.data.dataset import TensorDataSet as TensorDataSet
from flodl.data.loader import DataLoader as DataLoader
from flodl.data.loader import EpochIterator as EpochIterator
from flodl.data.loader import LoaderBuilder as LoaderBuilder
from flodl.data.mnist import Mnist as Mnist
from flodl.data.packaged import digits as digits
from flodl.data.sampler import RandomSampler as RandomSampler
from flodl.data.sampler import Sampler as Sampler
from flodl.data.sampler import SequentialSampler as SequentialSampler
