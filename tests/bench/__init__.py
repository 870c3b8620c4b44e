"""Tests of the scenarios of `python -m bench`."""
