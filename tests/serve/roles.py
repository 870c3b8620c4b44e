"""Owns the secret, the rules and the tokens of servers with roles."""

from __future__ import annotations

SECRET = bytes(range(32))
