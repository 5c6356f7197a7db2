"""flodl: graphs and a training framework on PyTorch.

Each public name is imported when it is first used. ``__init__.pyi`` lists them.
"""

from flodl import terminal as _terminal

try:
    with _terminal.importing("torch"):
        import torch as _torch  # noqa: F401
except ModuleNotFoundError as _missing:
    if _missing.name != "torch":
        raise
    from flodl.without_torch import refuse as _refuse

    _refuse()

from pkgutil import iter_modules as _iter_modules

from lazy_loader import attach_stub as _attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
# A star import would replace the importer's own ``nn``, which is usually torch's.
_modules = {module.name for module in _iter_modules(__path__)}
__all__ = [name for name in __all__ if name not in _modules]
