"""`fdl warm`: one process of a project that has torch loaded, and is forked for each start.

Four processes take part. Nothing but values of :mod:`fdl.warm.wire` passes between them.

- The **client** is `fdl train` itself (:mod:`fdl.warm.client`).
- The **server** (:mod:`.server`) runs with the project's interpreter. It imports, waits and forks.
- The **keeper** (:mod:`.keeper`) is a fork of the server, one for each run. It tells the client how
  the run ends, and ends the run when the client is gone.
- The **program** (:mod:`.program`) is a fork of the keeper and runs the user's script.

The project's interpreter may lack fdl. So the modules that it runs use the standard library only,
and import each other by relative names; :mod:`fdl.warm.start` loads them from their folder.
"""
