"""Load, train and export Hugging Face checkpoints of seven encoder families as graphs.

::

    from flodl.hf import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained("owner/name")
    model.predict(["what a day", "what a mess"])

Pickle files are never loaded, and ``transformers`` is not needed. Each name is imported at its
first use; ``__init__.pyi`` lists them. The packages of an extra are imported when they are first
needed.
"""

from lazy_loader import attach_stub as _attach_stub

__getattr__, __dir__, __all__ = _attach_stub(__name__, __file__)
