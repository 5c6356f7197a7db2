"""Many runs on one page: served on this machine while it is open, or written as one file.

``catalog`` holds all runs and what changed; ``rows`` reads one of them, ``cache`` keeps what was
read. ``curves`` cuts curves to what a screen shows. ``document`` makes the page, ``server`` serves
it.
"""
