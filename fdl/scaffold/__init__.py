"""New projects: their mode, the values for their templates, and writing them in one step."""

from fdl.scaffold.mode import Mode as Mode, from_flags as from_flags
from fdl.scaffold.project import (
    check_name as check_name,
    is_released as is_released,
    values as values,
)
from fdl.scaffold.render import (
    list_files as list_files,
    refuse_existing as refuse_existing,
    render as render,
)
