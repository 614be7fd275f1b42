"""One end of a TCP connection, as a program on a host: its lines go out, what happens comes back.

`listen ADDRESS PORT` or `connect ADDRESS PORT`. What stands on stdin is sent; stdout has a line for
each thing that happened. A line of more than 100 characters is told by its length.
"""

import contextlib
import errno
import os
import socket
import sys
import threading


def tell(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def speak(connection):
    with contextlib.suppress(OSError):  # the reading side says why
        for line in sys.stdin.buffer:
            connection.sendall(line)
        os._exit(0)  # whoever spoke has gone


def main(mode, address, port):
    if mode == "listen":
        with socket.create_server((address, int(port))) as server:
            tell("listening")
            connection, _ = server.accept()
    else:
        connection = socket.create_connection((address, int(port)))
    with connection, connection.makefile("rb") as lines:
        threading.Thread(target=speak, args=[connection], daemon=True).start()
        tell("connected")
        try:
            for line in lines:
                text = line.decode().rstrip("\n")
                tell(f"heard {text if len(text) <= 100 else len(text)}")
        except OSError as error:
            tell(errno.errorcode[error.errno])


if __name__ == "__main__":
    main(*sys.argv[1:])
