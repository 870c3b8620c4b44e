"""Gives commands orjson: `from txlog.base.startup import json as orjson`.

orjson imports dataclasses and inspect, which cost a short command time. Only code that reads or
writes JSON records imports this module, and with it orjson.
"""

from __future__ import annotations

from orjson import Fragment, JSONDecodeError, dumps, loads

__all__ = ["Fragment", "JSONDecodeError", "dumps", "loads"]
