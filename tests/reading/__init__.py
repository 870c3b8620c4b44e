"""Tests of reading, also up to damage."""
