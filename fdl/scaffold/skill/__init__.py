"""Skills: texts that teach a coding assistant to work with flodl."""

from fdl.scaffold.skill.content import (
    FILES as FILES,
    SKILLS as SKILLS,
    Skill as Skill,
    find as find,
)
from fdl.scaffold.skill.tools import (
    TOOLS as TOOLS,
    Tool as Tool,
    Written as Written,
    choose as choose,
    detected as detected,
    install as install,
)
