"""Tests of what SQL sees."""
