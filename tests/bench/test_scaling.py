"""Growth is measured in turns: what else the machine does is not taken for it."""

import time

import pytest

from dualwrite.cli.bench.scaling import TURNS, in_turns

MEASURED_S = 1.0


@pytest.fixture
def machine(monkeypatch):
    """A clock that works move: by what they cost, and ten times as much in its busy second half."""

    class Machine:
        now_s = 0.0

        def work(self, cost_s):
            def once():
                self.now_s += cost_s * (1 if self.now_s < MEASURED_S / 2 else 10)

            return once

    made = Machine()
    monkeypatch.setattr(time, "perf_counter", lambda: made.now_s)
    return made


def test_a_machine_that_gets_busy_is_not_growth(machine):
    same, other = in_turns([machine.work(0.001), machine.work(0.001)], MEASURED_S)

    assert same == pytest.approx(other)


def test_what_costs_more_shows_on_a_machine_that_gets_busy(machine):
    grown, control = in_turns([machine.work(0.0015), machine.work(0.001)], MEASURED_S)

    assert grown / control == pytest.approx(1.5)


def test_both_take_every_place_in_turn():
    order = []

    in_turns([lambda: order.append("grown"), lambda: order.append("control")], 0)

    # Without time it is one that is not counted and one that is.
    first, second = ["control"] * 2 + ["grown"] * 2, ["grown"] * 2 + ["control"] * 2
    assert order == (first + second) * (TURNS // 2)
