"""Tests of schemas: what a value of a typed topic is, as bytes, as a record and as columns."""
