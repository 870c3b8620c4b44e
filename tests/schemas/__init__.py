"""Tests of schemas: a value of a typed topic as bytes, as a record and as columns."""
