"""Tests of bulk work by DuckDB."""
