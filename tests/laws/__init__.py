"""Tests of the eight laws."""
