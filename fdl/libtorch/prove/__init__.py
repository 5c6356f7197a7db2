"""Find out from library files which GPUs a libtorch runs on; needs neither a GPU nor torch."""

from fdl.libtorch.prove.facts import Cuda as Cuda
from fdl.libtorch.prove.facts import Facts as Facts
from fdl.libtorch.prove.facts import facts_of as facts_of
