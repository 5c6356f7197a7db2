"""The run directories of a project: find, list, compare, follow and delete them.

A run directory holds plain files (JSON, CSV, text), so nothing here needs torch or flodl.
"""
