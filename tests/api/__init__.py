"""Tests of the Python API as a whole."""
