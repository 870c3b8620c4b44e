"""Settings of a store, as the API answers them: the keys are what the commands print."""

from __future__ import annotations

from typing import Any

from txlog.engine.decide.topics.update import ChangedSetting, Value, set_setting
from txlog.engine.store.ask import look
from txlog.engine.store.store import Store
from txlog.settings import Settings

Answer = dict[str, Any]


def listed(store: Store) -> list[Answer]:
    """Every setting; {name, value, origin}: built in, or store where it is another value."""
    usual = Settings().to_mapping()
    return look(
        store,
        lambda _: [
            {"name": name, "value": value,
             "origin": "built in" if value == usual[name] else "store"}
            for name, value in store.settings.to_mapping().items()
        ],
    )  # fmt: skip


def change(store: Store, name: str, value: Value) -> Answer:
    """Set a setting for all processes; {name, value, before, changed}."""
    answer = store.write(lambda view, now: set_setting(view, store.settings, now, name, value))
    assert isinstance(answer, ChangedSetting)
    return {"name": name, "value": answer.value, "before": answer.before,
            "changed": answer.value != answer.before}  # fmt: skip
