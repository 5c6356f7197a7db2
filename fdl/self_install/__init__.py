"""Putting ``fdl`` on the user's PATH, and keeping it up to date."""

from fdl.self_install.launcher import link as link, write as write
from fdl.self_install.place import Place as Place, look as look
from fdl.self_install.release import Release as Release, newest as newest, upgrade as upgrade
from fdl.self_install.shell import path_hint as path_hint
