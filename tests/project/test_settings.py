"""Settings: the defaults stand, and a refusal names the setting and both numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlog.base.settings import BOUNDS, Settings, check_setting
from txlog.errors import InvalidArgument, LimitExceeded, TxlogError


def test_defaults_are_within_their_bounds() -> None:
    values = Settings().to_mapping()
    assert Settings.from_mapping(values) == Settings()
    assert Settings.from_mapping({}) == Settings()


def test_given_values_replace_defaults() -> None:
    settings = Settings.from_mapping({"coordinators": 4, "durability": "os"})
    assert (settings.coordinators, settings.durability) == (4, "os")
    assert settings.sweep_max == Settings().sweep_max


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_each_bound_holds_at_both_ends(name: str) -> None:
    smallest, largest = BOUNDS[name]
    assert check_setting(name, smallest) == smallest
    assert check_setting(name, largest) == largest
    with pytest.raises(InvalidArgument) as below:
        check_setting(name, smallest - 1)
    with pytest.raises(LimitExceeded) as above:
        check_setting(name, largest + 1)
    assert below.value.fields == {"setting": name, "limit": smallest, "value": smallest - 1}
    assert above.value.fields == {"setting": name, "limit": largest, "value": largest + 1}
    assert name in above.value.message
    assert str(largest + 1) in above.value.message


@pytest.mark.parametrize(
    "values",
    [
        {"no_such": 1},
        {"coordinators": "16"},
        {"coordinators": True},
        {"coordinators": 1.0},
        {"coordinators": None},
        {"durability": "none"},
        {"durability": 1},
        {"sidecar_garbage_ratio": 0},
        {"sidecar_garbage_ratio": 1.5},
        {"sidecar_garbage_ratio": "half"},
        {"txn_ended_retention_ms": -1, "txn_ended_retention_count": -1},
    ],
)
def test_bad_values_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        Settings.from_mapping(values)


def test_default_timeout_above_the_maximum_is_refused() -> None:
    with pytest.raises(LimitExceeded) as caught:
        Settings.from_mapping({"txn_timeout_default_ms": 2_000, "txn_timeout_max_ms": 1_000})
    assert caught.value.fields["setting"] == "txn_timeout_default_ms"


@given(st.dictionaries(st.sampled_from(sorted(BOUNDS)), st.integers(), max_size=4))
def test_accepted_settings_round_trip(values: dict[str, object]) -> None:
    try:
        settings = Settings.from_mapping(values)
    except TxlogError as error:
        assert error.exit == 2
        return
    assert Settings.from_mapping(settings.to_mapping()) == settings
