"""Find out from library files which GPUs a libtorch runs on; needs neither a GPU nor torch."""

from fdl.libtorch.prove.facts import Cuda as Cuda, Facts as Facts, facts_of as facts_of
