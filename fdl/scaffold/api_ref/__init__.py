"""The reference of flodl's classes and functions, read off its source.

Nothing is imported: files are parsed, so torch need not be installed and nothing in them runs.
"""
