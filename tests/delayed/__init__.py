"""Tests of delayed delivery."""
