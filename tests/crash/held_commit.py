"""A proxy before a database server: COMMIT stands still on its way there, or its answer on its way back."""

import threading

from sqlalchemy import make_url

from tests.crash.points import stop_at
from tests.servers.cutting_proxy import CuttingProxy, shut

ORDER_AND_COMMIT = {
    "postgresql": (b"INSERT INTO orders_", b"COMMIT"),
    "mysql": (b"INSERT INTO orders_", b"COMMIT"),
    "zookeeper": (b"/orders/1", b"/orders/1"),
}
"""What the connection that writes the order sends first, and what then is its COMMIT."""


def port_of(case):
    if case.kind == "zookeeper":
        return int(case.address.rpartition(":")[2])
    return make_url(case.address).port


def address_at(case, port):
    """The case's database behind another port."""
    if case.kind == "zookeeper":
        return f"{case.address.rpartition(':')[0]}:{port}"
    return make_url(case.address).set(port=port).render_as_string(hide_password=False)


class HoldingProxy(CuttingProxy):
    """Holds the COMMIT of the order that is written through it: C9a the request, C9b the answer.

    If it `loses`, what it has held is never delivered, and the connection is reset instead. So it
    is when the proxy is closed, because its client is dead.
    """

    def __init__(self, case, point, folder, *, loses):
        self._order, self._commit = ORDER_AND_COMMIT[case.kind]
        self._point = point
        self._folder = folder
        self._loses = loses
        self._committing = set()
        """The client's end of the connection."""
        self._is_closing = threading.Event()
        self._has_gone_on = threading.Event()
        super().__init__(port_of(case))

    def close(self):
        self._is_closing.set()
        self._has_gone_on.set()
        super().close()

    def _forward(self, source, sink, is_answer):
        client = sink if is_answer else source
        has_order = False
        try:
            while data := source.recv(65536):
                has_order |= not is_answer and self._order in data
                is_commit = has_order and self._commit in data
                if is_commit:
                    self._committing.add(client)
                is_answer_to_it = is_answer and client in self._committing
                is_point = is_commit if self._point == "C9a" else is_answer_to_it
                if is_point and not self._hold():
                    break
                sink.sendall(data)
        except OSError:
            pass  # one of the two is gone
        if is_answer and client in self._committing:
            # The database died: its client is told when the test says so.
            self._has_gone_on.wait()
        shut(source)
        shut(sink)

    def _hold(self):
        """False if what is held must not go on."""
        may_go_on = stop_at(self._folder, self._is_closing.is_set)
        self._has_gone_on.set()
        return may_go_on and not self._loses
