"""The built-in commands: one module per command, with its Typer functions in ``verbs``.

:mod:`fdl.manifest.builtins` knows their names. ``application.py`` imports a module when its name is
typed.
"""
