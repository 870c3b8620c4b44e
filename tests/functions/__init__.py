"""Tests of user code between topics."""
