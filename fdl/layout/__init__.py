"""Laying out help pages: rows, tables and the options of a program."""
