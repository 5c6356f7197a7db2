"""The trails that runs leave: found, listed, compared, followed and cleared away.

A run directory is plain files (JSON, CSV, text), so nothing here needs torch or flodl.
"""
