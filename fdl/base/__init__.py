"""What ``flodl`` uses too: secrets, files, names, and script and style of pages.

It imports nothing else of ``fdl``, and needs only the standard library.
"""
