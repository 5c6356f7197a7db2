"""Putting ``fdl`` on the user's PATH, and keeping it up to date."""

from fdl.self_install.launcher import link as link
from fdl.self_install.launcher import write as write
from fdl.self_install.place import Place as Place
from fdl.self_install.place import look as look
from fdl.self_install.release import Release as Release
from fdl.self_install.release import newest as newest
from fdl.self_install.release import upgrade as upgrade
from fdl.self_install.shell import path_hint as path_hint
