"""Tests of an open store: the write path, identity, locks, pins, clocks."""
