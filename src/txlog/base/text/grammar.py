"""Owns what is JSON: one value by RFC 8259, whatever a reader can hold of it.

`import` and `produce` ask here, so that both take and refuse the same lines.
"""

from __future__ import annotations

import json
from typing import NoReturn

from txlog.base.startup import json as orjson


def json_failure(value: bytes) -> ValueError | None:
    """Why bytes are not JSON; None: they are.

    orjson refuses a number that no double holds, such as 1e400, which JSON allows.
    """
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError as failure:
        return None if "infinity" in str(failure) and _is_json(value) else failure
    return None


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value, parse_constant=_refuse, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
