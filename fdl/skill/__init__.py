"""Skills: texts that teach a coding assistant to work with flodl."""

from fdl.skill.content import FILES as FILES
from fdl.skill.content import SKILLS as SKILLS
from fdl.skill.content import Skill as Skill
from fdl.skill.content import find as find
from fdl.skill.tools import TOOLS as TOOLS
from fdl.skill.tools import Tool as Tool
from fdl.skill.tools import Written as Written
from fdl.skill.tools import choose as choose
from fdl.skill.tools import detected as detected
from fdl.skill.tools import install as install
