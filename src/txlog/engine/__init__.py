"""Owns the store itself: bytes, facts, folds, decisions and upkeep. It logs and prints nothing."""
