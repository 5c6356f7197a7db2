"""The ranks of a training: their group, their launch, what they average, and who trains what.

Each name is imported at its first use; ``__init__.pyi`` lists them.
"""

from lazy_loader import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
