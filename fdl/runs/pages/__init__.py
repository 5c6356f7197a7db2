"""Many runs on one page: served on this machine while it is open, or written as one file.

``catalog`` holds all runs and what changed; ``rows`` reads one of them, ``cache`` keeps what was
read. ``curves`` cuts curves to what a screen shows. ``many`` and ``one`` answer for many runs and
for one; ``server`` lets readers in.
"""
