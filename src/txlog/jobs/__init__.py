"""Jobs: bulk work over topics, by DuckDB in this process or by Spark.

A job is a function of a client and an engine; it returns what `txlog job NAME --json` prints. What
it computes is the same on either engine, and so is what it changes.
"""
