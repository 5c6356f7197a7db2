"""Programs for transformers and sentence-transformers, run with both and with flodl.

Only the import of the model library differs; see ``test_programs.py``.
"""
