"""What ``fdl`` and ``flodl`` both use: the rule for secrets, and script and style of their pages.

It imports neither of the two, and needs only the standard library.
"""
