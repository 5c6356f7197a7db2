"""Preparing a machine or a project.

``facts.gather`` looks, ``plan.plan`` decides with the answers of ``questions``, ``execute.execute``
does it; only the first and the last have to do with the outside.
"""
