"""Ids of an app and owners of slots, without a database."""

import dataclasses
import os
import subprocess
import sys

import pytest

from dualwrite.errors import ConfigurationError
from dualwrite.owner import Owner
from dualwrite.slot_ids import check_app, slot_id, slot_number


def test_ids_are_matched_in_full():
    assert slot_number("a", "a-7") == 7
    for other in ("a-", "a-7x", "a-b-7", "ab-7", "A-7", "a-٣", "a-7\n", "xa-7"):
        assert slot_number("a", other) is None
    assert slot_number("a", slot_id("a", 12)) == 12
    assert slot_number("a.b", "aXb-1") is None


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä", "x" * 101, "a\n"])
def test_app_names_are_checked(name):
    with pytest.raises(ConfigurationError):
        check_app(name)


def test_owner_survives_its_text():
    owner = Owner.of_this_process("pod-3")
    assert Owner.parse(str(owner)) == owner
    assert Owner.parse("written by hand") is None
    assert len(str(owner)) <= 255


def test_live_process_is_not_gone():
    me, peer = Owner.of_this_process(), Owner.of_this_process()
    assert me != peer
    assert not me.is_gone(str(peer))
    assert not me.is_gone(str(me))


def test_dead_process_on_this_host_is_gone():
    program = "from dualwrite.owner import Owner; print(Owner.of_this_process())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    dead = done.stdout.strip()
    assert dead.split("/")[2] != str(os.getpid())
    assert Owner.of_this_process().is_gone(dead)


def test_other_host_is_never_known_to_be_gone():
    me = Owner.of_this_process()
    elsewhere = str(me).replace(me.host, "elsewhere", 1).replace(f"/{me.pid}/", "/1/")
    assert not me.is_gone(elsewhere)


def test_other_container_of_the_same_host_name_is_never_known_to_be_gone():
    """The same number means another process there."""
    me = Owner.of_this_process()
    elsewhere = dataclasses.replace(me, place="another", pid=1, started="1")
    assert not me.is_gone(str(elsewhere))


def test_recycled_pid_is_another_process():
    me = Owner.of_this_process()
    earlier = str(me).replace(f"/{me.started}/", "/1/")
    assert me.is_gone(earlier)


def test_restarted_instance_takes_its_own_rows():
    me = Owner.of_this_process("pod-3")
    earlier = str(me).replace(me.host, "elsewhere", 1).replace(me.token, "ffffffff")
    assert me.is_gone(earlier)
    assert not Owner.of_this_process("pod-4").is_gone(earlier)
