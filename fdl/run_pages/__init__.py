"""Many runs on one page: served on this machine while it is open, or written as one file.

``rows`` reads a run, ``cache`` keeps what was read, ``catalog`` holds all runs and what changed,
``curves`` cuts curves to what a screen shows, ``document`` makes the page, ``server`` serves it.
"""
