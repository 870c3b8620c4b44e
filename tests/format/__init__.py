"""Stores that were written once and must stay readable."""
