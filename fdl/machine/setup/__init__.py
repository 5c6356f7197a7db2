"""Prepare a machine or a project.

``facts.gather`` reads the machine, ``plan.plan`` decides with the answers of ``questions``, and
``execute.execute`` runs the steps. Only the first and the last access the machine.
"""
