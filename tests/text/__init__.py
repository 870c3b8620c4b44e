"""Tests of columns as text: the same bytes as one message after the other gives."""
