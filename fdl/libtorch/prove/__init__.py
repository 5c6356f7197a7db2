"""What libraries of libtorch run on, proved from their files with neither GPU nor torch."""

from fdl.libtorch.prove.facts import Cuda as Cuda
from fdl.libtorch.prove.facts import Facts as Facts
from fdl.libtorch.prove.facts import facts_of as facts_of
