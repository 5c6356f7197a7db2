"""Showing where a value comes from, and changing it there: ``fdl config``, ``fdl why``.

For a manifest, ``config show`` and ``why`` load only fdl's own light modules.
"""
