"""New projects: their mode, the values for their templates, and writing them in one step."""

from fdl.scaffold.mode import Mode as Mode
from fdl.scaffold.mode import ask as ask
from fdl.scaffold.mode import from_flags as from_flags
from fdl.scaffold.project import check_name as check_name
from fdl.scaffold.project import is_released as is_released
from fdl.scaffold.project import values as values
from fdl.scaffold.render import list_files as list_files
from fdl.scaffold.render import refuse_existing as refuse_existing
from fdl.scaffold.render import render as render
