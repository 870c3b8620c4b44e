"""Durations and sizes as people read them."""

from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def duration(ms: int) -> str:
    """Return milliseconds in readable form: 8.4s, 4m, 2h10m, 3d."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    if ms < 1000:
        return f"{sign}{ms}ms"
    if ms < 60_000:
        return f"{sign}{ms / 1000:.1f}s" if ms < 10_000 and ms % 1000 else f"{sign}{ms // 1000}s"
    if ms < 3_600_000:
        return f"{sign}{ms // 60_000}m"
    if ms < 86_400_000:
        minutes = ms % 3_600_000 // 60_000
        return f"{sign}{ms // 3_600_000}h" + (f"{minutes}m" if minutes else "")
    return f"{sign}{ms // 86_400_000}d"


def size(count: int) -> str:
    """Return bytes in readable form: 3 B, 82.4 MiB."""
    if count < 1024:
        return f"{count} B"
    step = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**step:.1f} {_UNITS[step - 1]}"
