"""A session of a user's program."""

from __future__ import annotations

import txlog.spark

spark = txlog.spark.session("local[1]", {"spark.driver.memory": "512m"})
assert spark.range(3).count() == 3
assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
spark.stop()
