"""Tests of topics and their policies."""
