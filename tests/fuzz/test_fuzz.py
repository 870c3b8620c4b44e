"""Inputs from elsewhere end with an error of txlog: kept inputs, and new ones each day."""

from __future__ import annotations

import time

import pytest

from tests.fuzz import corpus
from tests.fuzz.engine import Campaign, runner
from tests.fuzz.targets import TARGETS

DAY = int(time.time()) // 86_400
SECONDS = 0.7  # of a processor, for each target
EXECUTIONS = 3_000


KEPT = {
    name: [*corpus.kept(name), *corpus.findings(name).values()]
    for name in TARGETS
    if corpus.kept(name) or corpus.findings(name)
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_inputs_have_no_finding(name: str) -> None:
    """Kills: a defect that was once found, and any defect on a line that the corpus reaches."""
    found = {*corpus.findings(name).values()}
    with runner(TARGETS[name]) as running:
        for data in KEPT[name]:
            finding = running.run(data)
            if finding is None and data in found:
                finding = running.measure(data)
            assert finding is None, f"{finding.sentence}\n{finding.details}"


@pytest.mark.deep
@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_have_no_finding(name: str) -> None:
    """The seed is the day, so that each day has other inputs; it is printed."""
    print(f"scripts/fuzz {name} --seed {DAY}")
    campaign = Campaign(TARGETS[name], DAY)
    campaign.run(EXECUTIONS, SECONDS, time.process_time)
    print(f"{campaign.executions} inputs")
    sentences = [f"{finding.sentence}\n{finding.details}" for finding in campaign.findings.values()]
    assert not sentences, "\n".join(sentences)
