"""Messages as columns, in bulk: DuckDB, Spark, files and mirrors.

Other rooms import `lake.sql`, `lake.jobs` and `lake.spark`. Users import `txlog.spark`.

Contents:

    jobs/    bulk work over topics, with DuckDB or Spark
    spark/   topics as Spark data frames
    sql/     SQL over a store, with DuckDB
"""
