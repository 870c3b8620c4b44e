"""Owns the name by which Spark finds the data source `txlog`: it imports every `pyspark_*` module.

Kept light: every process that plans or reads imports it.
"""

from __future__ import annotations

from txlog.lake.spark.datasource import TxlogSource as DefaultSource

__all__ = ["DefaultSource"]
