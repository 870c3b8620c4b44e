"""Owns the definition of JSON: one value by RFC 8259, even if readers cannot represent it.

`import` and `produce` use it, so that both accept and refuse the same lines.
"""

from __future__ import annotations

import json
from typing import NoReturn

from txlog.base.startup import json as orjson


def json_failure(value: bytes) -> ValueError | None:
    """Why bytes are not JSON; None if they are.

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
