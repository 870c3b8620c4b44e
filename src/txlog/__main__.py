"""Owns `python -m txlog`, which equals the `txlog` command."""

from __future__ import annotations

from txlog_store import script

if __name__ == "__main__":
    script()
