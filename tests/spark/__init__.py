"""Tests with Spark."""
