"""Owns how commands get orjson: `from txlog.base.startup import json as orjson`.

orjson brings dataclasses and inspect; as a module of ours it is loaded by what reads or writes JSON
records, and by nothing else.
"""

from __future__ import annotations

from orjson import Fragment, JSONDecodeError, dumps, loads

__all__ = ["Fragment", "JSONDecodeError", "dumps", "loads"]
