"""``fdl diagnose``: facts about machine and project, findings about them, and remedies.

``survey`` gathers facts, ``findings`` judges them without any access to the machine, ``assemble``
makes the document of ``report``, and ``text`` prints it.
"""
