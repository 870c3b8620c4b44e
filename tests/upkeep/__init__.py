"""Tests of upkeep: checkpoints, space, verify and repair."""
