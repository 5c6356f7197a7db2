"""The sources of a libtorch: an official archive, a wheel, an address, a file, a folder.

A source makes a finished libtorch folder in a staging folder. :mod:`fdl.libtorch.install` moves it
to its place.
"""

from fdl.libtorch.sources.base import Bench as Bench, Source as Source, Wanted as Wanted
from fdl.libtorch.sources.local import local_archive as local_archive, local_folder as local_folder
from fdl.libtorch.sources.remote import address as address, official as official, package as package
