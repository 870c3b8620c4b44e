"""Tests of reading, with reads up to damaged frames."""
