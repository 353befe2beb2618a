"""One sum with numpy, for `fresh`."""

import os
import time

import numpy
import tally

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gradients = numpy.full(1000, rank + 1, numpy.float32)
tally.all_reduce(gradients)
print("first step at", time.time_ns())
assert (gradients == world * (world + 1) / 2).all()
print("sums are right")
