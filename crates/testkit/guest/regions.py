"""Sums two regions as a rank of a ring, frees one, and sums the other again. Prints how many memory
regions of the agent the kernel knows after each: `regions.py LIBTALLY`.
"""

import ctypes
import os
import subprocess
import sys

SECONDS = 60_000
ELEMENTS = 5000
F32, SUM, NATIVE = 0, 0, 1

library = ctypes.CDLL(sys.argv[1])
library.tally_region_data.restype = ctypes.c_void_p
library.tally_last_error.restype = ctypes.c_char_p
rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def call(name, *arguments):
    if getattr(library, name)(*arguments):
        sys.exit(f"{name}: {library.tally_last_error().decode()}")


def region():
    region = ctypes.c_void_p()
    call("tally_region_create", job, ctypes.c_size_t(4 * ELEMENTS), ctypes.byref(region))
    return region


def registered_after_sum(region):
    floats = (ctypes.c_float * ELEMENTS).from_address(library.tally_region_data(region))
    floats[:] = [rank + 1] * ELEMENTS
    ticket = ctypes.c_uint64()
    whole = (ctypes.c_size_t(0), ctypes.c_size_t(ELEMENTS))
    call("tally_all_reduce", job, region, *whole, F32, SUM, NATIVE, -1, b"sum", ctypes.byref(ticket))
    call("tally_wait", job, ticket, SECONDS)
    assert set(floats) == {workers * (workers + 1) / 2}
    shown = subprocess.run(["rdma", "resource", "show", "mr"], check=True, capture_output=True, text=True)
    return shown.stdout.count("comm ring 1")


job = ctypes.c_void_p()
socket = os.environ["TALLY_SOCKET"].encode()
call("tally_connect", socket, int(os.environ["TALLY_JOB"]), rank, workers, SECONDS, ctypes.byref(job))
first, second = region(), region()
counts = [registered_after_sum(first), registered_after_sum(second)]
library.tally_region_free(first)
counts.append(registered_after_sum(second))
call("tally_finish", job, SECONDS)
print("registered:", *counts)
