"""``fdl diagnose``: facts about machine and project, findings about them, and remedies.

:mod:`~fdl.diagnose.survey` gathers facts, :mod:`~fdl.diagnose.findings` judges them without any
access to the machine, :mod:`~fdl.diagnose.assemble` makes the document of
:mod:`~fdl.diagnose.report`, and :mod:`~fdl.diagnose.text` prints it.
"""
