"""Owns the bytes of a store: disk (all file effects), frames, journal, segments, manifest."""
