"""``fdl diagnose``: facts about machine and project, what is wrong with them, and the remedies.

:mod:`~fdl.diagnose.survey` gathers, :mod:`~fdl.diagnose.judge` judges without touching anything,
:mod:`~fdl.diagnose.report` is the document of both, and :mod:`~fdl.diagnose.text` prints it.
"""
