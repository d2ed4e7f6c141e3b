"""A slot that was last used in the other mode: what it left open ends as the database says."""

import pytest

from dualwrite import ConfigurationError, TwoPhaseProducer, resume
from dualwrite.broker import Broker
from dualwrite.failures import KafkaTimeout
from dualwrite.kafka_access import KafkaAccess
from dualwrite.resume import Resume
from tests.dualwrite.crashed import FOREIGN_OWNER, CrashedInstance
from tests.dualwrite.test_resume import CrashedInResume
from tests.dualwrite.waiting import wait_until
from tests.dualwrite.world import World


@pytest.fixture(scope="module")
def broker():
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    with Broker(settings=settings) as running:
        yield running


@pytest.fixture
def world(broker, tmp_path):
    made = World(broker.bootstrap_servers, f"sqlite:///{tmp_path / 'orders.db'}")
    yield made
    made.close()


@pytest.fixture
def either_world(broker, database_url):
    made = World(broker.bootstrap_servers, database_url)
    yield made
    made.close()


def fails_once(monkeypatch, owner, name, is_meant=lambda *_: True):
    """Have a method of recovery fail when it is first called; gives the calls that have failed."""
    real, failed = getattr(owner, name), []

    def failing(*arguments):
        if failed or not is_meant(*arguments):
            return real(*arguments)
        failed.append(arguments)
        raise KafkaTimeout(f"{name} was not answered")

    monkeypatch.setattr(owner, name, failing)
    return failed


def write(world, mode, number):
    with world.writer(slots=1, mode=mode) as dw:
        assert dw.mode == mode
        with dw.transaction() as tx:
            world.order(tx, number)


def test_decided_in_resume_mode_is_committed_by_two_phase_mode(world):
    CrashedInResume(world).produce(1).decide().die()
    write(world, "2pc", 2)
    world.assert_agree([1, 2])


def test_undecided_in_resume_mode_is_aborted_by_two_phase_mode(world):
    crashed = CrashedInResume(world).produce(1).die()
    write(world, "2pc", 2)
    assert not crashed.is_open()
    world.assert_agree([2])


def test_peer_in_resume_mode_that_dies_is_ended_by_two_phase_mode_within_its_lease(world):
    """The broker was made able to do it while the peer lived on, and not by any timeout of its."""
    world.store.lease(FOREIGN_OWNER, 3600)
    crashed = CrashedInResume(world)
    with world.writer(mode="2pc", lease_seconds=1):
        crashed.produce(1).die()
        world.store.end_lease(FOREIGN_OWNER)
        wait_until(lambda: not crashed.is_open())
    assert world.records() == []


@pytest.mark.parametrize(("owner", "step"), [(resume, "send"), (Resume, "commit")])
def test_what_a_peer_owed_is_sent_again_though_kafka_does_not_take_it_at_once(
    either_world, monkeypatch, owner, step
):
    """The peer died in resume mode after its COMMIT; a writer in two-phase mode takes over."""
    world = either_world
    world.store.lease(FOREIGN_OWNER, 3600)
    crashed = CrashedInResume(world, timeout_ms=200).produce(1).decide().die()
    wait_until(lambda: not crashed.is_open())
    failed = fails_once(monkeypatch, owner, step)
    with world.writer(mode="2pc", slots=1, lease_seconds=1) as dw:
        world.store.end_lease(FOREIGN_OWNER)
        wait_until(lambda: world.store.row(crashed.slot).owner == "")
        assert failed
        world.assert_agree([1])
        with dw.transaction() as tx:
            world.order(tx, 2)
    write(world, "2pc", 3)
    world.assert_agree([1, 2, 3])


@pytest.mark.parametrize(
    ("owner", "step"),
    [(Resume, "_abort_open"), (KafkaAccess, "open_ids")],
    ids=["the end", "the look"],
)
def test_undecided_of_a_peer_in_resume_mode_is_ended_though_kafka_was_away_for_a_moment(
    either_world, monkeypatch, owner, step
):
    world = either_world
    world.store.lease(FOREIGN_OWNER, 3600)
    crashed = CrashedInResume(world)
    with world.writer(mode="2pc", slots=1, lease_seconds=1):
        crashed.produce(1).die()

        def is_of_resume_mode(_, asked):
            return owner is Resume or asked.endswith(Resume.id_pattern)

        failed = fails_once(monkeypatch, owner, step, is_of_resume_mode)
        world.store.end_lease(FOREIGN_OWNER)
        wait_until(lambda: world.store.row(crashed.slot).owner == "")
        assert failed
        assert not crashed.is_open()
    assert world.records() == []


def test_timed_out_in_resume_mode_is_sent_again_by_two_phase_mode(world):
    crashed = CrashedInResume(world, timeout_ms=200).produce(1).decide().die()
    wait_until(lambda: not crashed.is_open())
    write(world, "2pc", 2)
    world.assert_agree([1, 2])


def test_decided_in_two_phase_mode_is_committed_by_resume_mode(world):
    CrashedInstance(world, f"{world.app}-0").prepare(1).decide().die()
    write(world, "resume", 2)
    world.assert_agree([1, 2])
    write(world, "2pc", 3)
    world.assert_agree([1, 2, 3])


def test_undecided_in_two_phase_mode_is_aborted_by_resume_mode(world):
    CrashedInstance(world, f"{world.app}-0").prepare(1).die()
    write(world, "resume", 2)
    world.assert_agree([2])


def test_what_only_two_phase_mode_can_end_is_refused_by_resume_mode(world):
    """A recovery that was cut short has moved the producer's epoch on: the pair alone ends nothing."""
    crashed = CrashedInstance(world, f"{world.app}-0").prepare(1).decide()
    crashed.die()
    with TwoPhaseProducer(
        {
            "bootstrap.servers": world.bootstrap,
            "transactional.id": crashed.transactional_id,
            "transaction.two.phase.commit.enable": True,
        }
    ) as recovering:
        recovering.init_transactions(keep_prepared_txn=True)
    with pytest.raises(ConfigurationError, match="mode='2pc'"):
        world.writer(slots=1, mode="resume").open()
    write(world, "2pc", 2)
    world.assert_agree([1, 2])


def test_modes_in_turn_are_no_reason_for_an_alarm(world, caplog):
    modes = ["2pc", "resume", "2pc", "resume", "resume", "2pc", "2pc"]
    for number, mode in enumerate(modes):
        write(world, mode, number)
    world.assert_agree(range(len(modes)))
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
