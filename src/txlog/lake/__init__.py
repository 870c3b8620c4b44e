"""Bulk reads and writes of messages as columns, with DuckDB and Spark: SQL, jobs, files, mirrors.

Other rooms import only the modules of the door. Users import `txlog.spark`.

Door: jobs/audit, jobs/export_files, jobs/import_files, jobs/lateness, jobs/local,
jobs/mirrors/mirror, jobs/replay, jobs/sources/loads, jobs/upkeep, spark/submit, sql/client_query,
sql/duck, sql/lists, sql/messages, sql/query, sql/segments, sql/spark_script, sql/this,
sql/views_script, sql/where.

Contents:

    jobs/    bulk work over topics, with DuckDB or Spark
    spark/   topics as Spark data frames
    sql/     SQL over a store, with DuckDB
"""
