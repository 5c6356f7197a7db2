"""Runs that other programs recorded, made into run directories.

:mod:`detect` finds them below a path, one module per format reads them, :mod:`write` keeps them.
"""
