"""Where a victim stops: by the writer's own steps, or by what has just gone over its sockets.

C0 before init, C1 init replied, C2 BEGIN, C3 data flushed, C4 Kafka transaction begun, C5 produce
sent, C6 first acknowledgement, C7 prepared, C8 state written, C9 COMMIT sent, C10 COMMIT answered,
C11 EndTxn sent, C12 EndTxn acknowledged. R1 claim committed, R2 init(keep) replied, R3 state read
again, R4 EndTxn sent.

The state is written while the records are under way, so C8 comes before C6 and C7: at C8 the
records may be durable or not, at C7 they are, and the state is written too. Between C7 and C9 the
writer asks nobody for anything.

C9 is two points: at C9a COMMIT has left the client's code and is not done, at C9b it is done and
its answer has not come. Servers get or answer it through a proxy (`held_commit.py`); where the
database is a library, one system call decides (`watched_disk.py`).
"""

import socket
import struct
import time

from dualwrite.wire.api_keys import ApiKey

STEPS = {
    "C1": "initialised",
    "C3": "flushed",
    "C4": "begun",
    "C7": "prepared",
    "C8": "remembered",
    "C10": "committed",
    "C12": "completed",
    "R1": "claimed",
    "R2": "initialised",
    "R3": "recalled",
}
SENT = {"C5": ApiKey.PRODUCE, "C6": ApiKey.PRODUCE, "C11": ApiKey.END_TXN, "R4": ApiKey.END_TXN}

INSIDE_COMMIT = ["C9a", "C9b"]
UNDECIDED = ["C0", "C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9a"]
"""Here nothing may be left of the victim's order."""
AFTER_COMMIT = ["C10", "C11", "C12"]
DECIDED = ["C9b", *AFTER_COMMIT]
"""Here the order must be on both sides."""
WRITE_POINTS = [*UNDECIDED, *DECIDED]
RECOVERY_POINTS = ["R1", "R2", "R3", "R4"]


def stop_at(folder, is_over=lambda: False):
    """Tell that the point is reached, and wait for the word to go on; False if it is over before."""
    (folder / "reached").touch()
    while not (folder / "go").exists():
        if is_over():
            return False
        time.sleep(0.005)
    return True


def watch_sockets(point, port, reach):
    """Call `reach()` once the request of this point was sent (C6: once something came back).

    Only the broker's `port` counts: a frame of ZooKeeper's looks like one of Kafka's.
    """
    key = SENT[point]
    real_send, real_sendmsg, real_recv = (
        socket.socket.send,
        socket.socket.sendmsg,
        socket.socket.recv,
    )
    is_sent = []

    def is_broker(sock):
        return sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getpeername()[1] == port

    def look(sock, data):
        if not is_sent and is_broker(sock) and key in api_keys(data):
            is_sent.append(True)
            if point != "C6":
                reach()

    def send(self, data, *rest):
        count = real_send(self, data, *rest)
        look(self, bytes(data))
        return count

    def sendmsg(self, buffers, *rest):
        buffers = [bytes(part) for part in buffers]
        count = real_sendmsg(self, buffers, *rest)
        look(self, b"".join(buffers))
        return count

    def recv(self, *rest):
        data = real_recv(self, *rest)
        if point == "C6" and is_sent and data and is_broker(self):
            reach()
        return data

    socket.socket.send, socket.socket.sendmsg, socket.socket.recv = send, sendmsg, recv


def api_keys(data):
    """The API keys of the request frames in what was sent."""
    keys, position = [], 0
    while position + 6 <= len(data):
        size, key = struct.unpack_from(">ih", data, position)
        keys.append(key)
        position += 4 + size
    return keys
