"""The built-in commands: a module for one or a few of them, with its Typer functions in ``verbs``.

:mod:`fdl.manifest.builtins` knows their names. ``application.py`` imports a module when its name is
typed.
"""
