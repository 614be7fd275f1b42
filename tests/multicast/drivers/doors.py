"""Doors before brokers: each has an address of its own, at which it says that the brokers are."""

import contextlib
import socket
import struct
import threading

METADATA = 3
FIND_COORDINATOR = 10  # librdkafka takes a broker's address from its answers, too
COMPACT = 3  # the first version of its answer that has tags
FLEXIBLE = 9  # the first version of an answer to Metadata with compact arrays


def read_exactly(source, size):
    read = b""
    while len(read) < size:
        more = source.recv(size - len(read))
        if not more:
            raise ConnectionError
        read += more
    return read


def read_frame(source):
    return read_exactly(source, *struct.unpack(">i", read_exactly(source, 4)))


def renamed(answer, places):
    """Return an answer to Metadata that names the brokers at these places, and no other broker.

    Of these it names the ones that the answer does: a dead one is not among them.
    """
    begin = 9  # after the number, the header's tags and the throttle time
    count, end = answer[begin] - 1, begin + 1
    named, known = b"", 0
    for _ in range(count):
        start, end = end, end + 4
        (broker,) = struct.unpack(">i", answer[start:end])
        end += max(1, answer[end])  # the host; the byte holds its length and one more
        start = end = end + 4  # the port
        end += max(1, answer[end])  # the rack
        assert answer[end] == 0, "no tags"
        end += 1
        if broker in places:
            host, port = places[broker]
            known += 1
            named += struct.pack(">ib", broker, len(host) + 1) + host.encode()
            named += struct.pack(">i", port) + answer[start:end]
    return answer[:begin] + bytes((known + 1,)) + named + answer[end:]


def relocated(answer, version, places):
    """Return an answer to FindCoordinator that names the broker's place."""
    begin = 10 if version else 6  # after the number, the throttle time, and the error
    if version:
        (length,) = struct.unpack(">h", answer[begin : begin + 2])  # of the error's text
        begin += 2 + max(0, length)
    end = begin + 4
    (broker,) = struct.unpack(">i", answer[begin:end])
    if broker not in places:
        return answer
    host, port = places[broker]
    return answer[:end] + struct.pack(">h", len(host)) + host.encode() + struct.pack(">i", port)


class Door:
    """An address before the broker `to`, which gives every broker's place as in `places`.

    fenced   it names no broker, as one does that was frozen until its controller took it for dead
    silent   nothing passes; connections are still accepted, as where a host is gone without a word
    """

    def __init__(self, to, places, *, host="127.0.0.1", port=0, tls=None):
        at, number = to.split(":")
        self._broker = (at, int(number))
        self._places = places
        self._tls = tls
        self._clients = []
        self.fenced = self.silent = False
        self.named_none = threading.Event()
        self._socket = socket.create_server((host, port))
        self.place = self._socket.getsockname()[:2]
        self.address = "{}:{}".format(*self.place)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self._clients.append(client)
                if not self.silent:
                    threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError):
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
                self._clients.append(client)
            broker = socket.create_connection(self._broker)
            requests = {}
            for forward in (self._requests, self._answers):
                threading.Thread(
                    target=forward, args=(client, broker, requests), daemon=True
                ).start()

    def _requests(self, client, broker, requests):
        with contextlib.suppress(OSError), broker:
            while True:
                frame = read_frame(client)
                if self.silent:
                    return
                api, version, number = struct.unpack(">hhi", frame[:8])
                requests[number] = api, version
                assert api != METADATA or version >= FLEXIBLE
                broker.sendall(struct.pack(">i", len(frame)) + frame)

    def _answers(self, client, broker, requests):
        with contextlib.suppress(OSError):
            while True:
                frame = read_frame(broker)
                if self.silent:
                    return
                fenced = self.fenced
                api, version = requests.pop(*struct.unpack(">i", frame[:4]))
                if api == FIND_COORDINATOR and version < COMPACT:  # librdkafka's
                    frame = relocated(frame, version, self._places)
                if api == METADATA:
                    frame = renamed(frame, {} if fenced else self._places)
                client.sendall(struct.pack(">i", len(frame)) + frame)
                if api == METADATA and fenced:
                    self.named_none.set()
        if not self.silent:
            self._end(client)

    def _end(self, client):
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()

    def close(self):
        """Accept no connection any more, and end those that are open."""
        with contextlib.suppress(OSError):  # a test has closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for client in self._clients:
            self._end(client)
