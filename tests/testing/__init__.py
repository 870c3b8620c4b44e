"""Tests of the helpers for tests of users."""
