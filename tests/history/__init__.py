"""Histories of txlog: what was called, what was answered, and whether that keeps the promises."""
