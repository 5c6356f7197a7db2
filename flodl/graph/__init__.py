"""Graphs: describe a network with FlowBuilder, then run it as a torch module.

Each name is imported at its first use; ``__init__.pyi`` lists them. A module that only needs
:mod:`flodl.graph.modules` does not load the rest.
"""

from lazy_loader import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
