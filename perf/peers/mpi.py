"""One process of an all-reduce by Open MPI, timed inside the process: mpi.py ELEMENTS ROUNDS.

As gloo.py: every round begins with a barrier, and one JSON object is printed for each process.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI


def vector(elements, rank):
    return ((np.arange(elements, dtype=np.int64) * 7 + rank * 13) % 1000).astype(np.float32)


def main():
    elements, rounds = map(int, sys.argv[1:])
    world = MPI.COMM_WORLD
    own = vector(elements, world.rank)
    values = np.empty_like(own)
    seconds = []
    for _ in range(rounds):
        np.copyto(values, own)
        world.Barrier()
        start = time.monotonic()
        world.Allreduce(MPI.IN_PLACE, values, MPI.SUM)
        seconds.append(time.monotonic() - start)
    expected = np.zeros_like(own)
    for rank in range(world.size):
        expected += vector(elements, rank)
    exact = bool(np.array_equal(values, expected))
    # One writer, so that lines stay whole.
    every = world.gather({"rank": world.rank, "seconds": seconds, "exact": exact})
    for one in every or []:
        print(json.dumps(one), flush=True)


main()
