"""Where a value comes from, and changing it there: ``fdl config``, ``fdl why``.

``config show`` and ``why`` of the manifest import nothing beyond our own light modules.
"""
