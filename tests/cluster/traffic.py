#!/usr/bin/env python3
"""Opens connections to Services until SIGTERM, and prints one line of JSON with counts.

tests/cluster/traffic.py [--rate N] [--kept N] HOST:PORT...

Of each address, N new connections per second are opened, and some are kept open and used all the time. A connection
fails if it is refused, reset, or not answered within five seconds.
"""

import argparse
import http.client
import json
import signal
import threading
import time

TIMEOUT_SECONDS = 5
# A lost SYN is sent again after one second.
SLOW_SECONDS = 0.9
PERIOD_OF_KEPT_SECONDS = 0.2
ERRORS_KEPT = 5


class Counts:
    def __init__(self):
        self.lock = threading.Lock()
        self.connections = self.requests = self.failed = self.slow = 0
        self.slowest = 0.0
        self.errors = []

    def add(self, kind, seconds):
        with self.lock:
            setattr(self, kind, getattr(self, kind) + 1)
            self.slowest = max(self.slowest, seconds)
            self.slow += seconds > SLOW_SECONDS

    def fail(self, kind, address, error):
        with self.lock:
            self.failed += 1
            if len(self.errors) < ERRORS_KEPT:
                self.errors.append(f"{time.strftime('%H:%M:%S')} {kind} {address}: {error!r}")


def connect(address):
    host, _, port = address.rpartition(":")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_SECONDS)


def request(connection):
    connection.request("GET", "/hostname")
    response = connection.getresponse()
    response.read()
    if response.status != 200:
        raise OSError(f"status {response.status}")


def open_new(address, rate, counts, stop):
    while not stop.wait(1 / rate):
        start = time.monotonic()
        try:
            connection = connect(address)
            request(connection)
            connection.close()
            counts.add("connections", time.monotonic() - start)
        except (OSError, http.client.HTTPException) as error:
            counts.fail("new", address, error)


def keep_open(address, counts, stop):
    connection = None
    while not stop.wait(PERIOD_OF_KEPT_SECONDS):
        start = time.monotonic()
        try:
            if connection is None:
                connection = connect(address)
                connection.connect()
                # A kept connection that was closed must count, so it is not opened again silently.
                connection.auto_open = 0
            request(connection)
            counts.add("requests", time.monotonic() - start)
        except (OSError, http.client.HTTPException) as error:
            counts.fail("kept", address, error)
            connection = None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=15, help="new connections per second to each address")
    parser.add_argument("--kept", type=int, default=2, help="connections to each address that are kept open")
    parser.add_argument("addresses", metavar="HOST:PORT", nargs="+")
    arguments = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    counts = Counts()
    threads = []
    for address in arguments.addresses:
        threads.append(threading.Thread(target=open_new, args=(address, arguments.rate, counts, stop)))
        threads += [threading.Thread(target=keep_open, args=(address, counts, stop)) for _ in range(arguments.kept)]
    for thread in threads:
        thread.start()
    print("started", flush=True)
    for thread in threads:
        thread.join()
    fields = {name: value for name, value in vars(counts).items() if name != "lock"}
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
