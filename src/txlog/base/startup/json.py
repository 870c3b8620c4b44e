"""Gives commands orjson: `from txlog.base.startup import json as orjson`.

orjson imports dataclasses and inspect. As a module of ours it is loaded only by code that reads or
writes JSON records.
"""

from __future__ import annotations

from orjson import Fragment, JSONDecodeError, dumps, loads

__all__ = ["Fragment", "JSONDecodeError", "dumps", "loads"]
