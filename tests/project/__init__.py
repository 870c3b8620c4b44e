"""Tests of the whole: layers, documents, examples, names and settings, the formats."""
