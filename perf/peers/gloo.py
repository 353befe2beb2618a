"""One process of an all-reduce by PyTorch's Gloo, timed inside the process.

    gloo.py ring|server|hierarchy:GROUP RANK WORKERS ADDRESS INTERFACE ELEMENTS ROUNDS

ring: torch.distributed.all_reduce, in place. server: the workers send their vector to the process
of rank WORKERS, which sums and sends the sum back, in parts that follow one another, so that both
directions of its link are busy all the time. hierarchy: a ring's reduce-scatter among GROUP
neighbours, all-reduces by rings of those with the same place in their groups, and a ring's
all-gather among neighbours.

Every round begins with a barrier. Prints one JSON object: the seconds of each round at this
process, and whether every element of the last sum is right. The numbers are small integers, so that
the sum is exact for any order of additions.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

PART_ELEMENTS = 1 << 18


def vector(elements, rank):
    return ((torch.arange(elements, dtype=torch.int64) * 7 + rank * 13) % 1000).to(torch.float32)


def expected(elements, workers):
    total = torch.zeros(elements, dtype=torch.float32)
    for rank in range(workers):
        total += vector(elements, rank)
    return total


def serve(sums, workers):
    """Sums and sends back part by part; all receives are posted before the first arrives."""
    parts = sums.split(PART_ELEMENTS)
    inputs = [[torch.empty_like(part) for _ in range(workers)] for part in parts]

    def begin():
        return [
            [dist.irecv(buffer, src=rank, tag=part) for rank, buffer in enumerate(buffers)]
            for part, buffers in enumerate(inputs)
        ]

    def finish(receives):
        sends = []
        for part, (total, buffers, works) in enumerate(zip(parts, inputs, receives)):
            total.zero_()
            for work, buffer in zip(works, buffers):
                work.wait()
                total += buffer
            sends += [dist.isend(total, dst=rank, tag=part) for rank in range(workers)]
        for work in sends:
            work.wait()

    return begin, finish


def ask(values, server):
    parts = values.split(PART_ELEMENTS)
    results = [torch.empty_like(part) for part in parts]

    def begin():
        return [dist.irecv(result, src=server, tag=part) for part, result in enumerate(results)]

    def finish(receives):
        sends = [dist.isend(part, dst=server, tag=at) for at, part in enumerate(parts)]
        for work in receives + sends:
            work.wait()
        values.copy_(torch.cat(results))

    return begin, finish


def exchange(part, to, buffer, source):
    sent = dist.isend(part, dst=to)
    dist.recv(buffer, src=source)
    sent.wait()


def reduce_scatter(parts, ring, rank):
    """Leaves the sum of part `me + 1` at this process."""
    n, me = len(ring), ring.index(rank)
    for step in range(n - 1):
        total = parts[(me - step - 1) % n]
        buffer = torch.empty_like(total)
        exchange(parts[(me - step) % n], ring[(me + 1) % n], buffer, ring[me - 1])
        total += buffer
    return parts[(me + 1) % n]


def all_gather(parts, ring, rank):
    """Begins with part `me + 1` at this process."""
    n, me = len(ring), ring.index(rank)
    for step in range(n - 1):
        exchange(parts[(me - step + 1) % n], ring[(me + 1) % n], parts[(me - step) % n], ring[me - 1])


def hierarchy(values, group, rank, workers):
    inside = list(range(rank // group * group, rank // group * group + group))
    across = list(range(rank % group, workers, group))
    parts = list(values.tensor_split(group))
    own = list(reduce_scatter(parts, inside, rank).tensor_split(len(across)))
    reduce_scatter(own, across, rank)
    all_gather(own, across, rank)
    all_gather(parts, inside, rank)


def main():
    mode, rank, workers, address, interface, elements, rounds = sys.argv[1:]
    rank, workers, elements, rounds = int(rank), int(workers), int(elements), int(rounds)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    # Debian 13 builds PyTorch without libuv, which only the rendezvous uses.
    os.environ["USE_LIBUV"] = "0"
    size = workers + (mode == "server")
    url = f"tcp://{address}:29500"
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=size)
    own = vector(elements, rank)
    values = torch.empty(elements, dtype=torch.float32)
    if mode == "ring":
        begin, finish = (lambda: None), (lambda _: dist.all_reduce(values))
    elif mode.startswith("hierarchy:"):
        group = int(mode.removeprefix("hierarchy:"))
        begin, finish = (lambda: None), (lambda _: hierarchy(values, group, rank, workers))
    elif rank == workers:
        begin, finish = serve(values, workers)
    else:
        begin, finish = ask(values, workers)
    seconds = []
    for _ in range(rounds):
        values.copy_(own)
        posted = begin()
        dist.barrier()
        start = time.monotonic()
        finish(posted)
        seconds.append(time.monotonic() - start)
    exact = bool(torch.equal(values, expected(elements, workers)))
    print(json.dumps({"rank": rank, "seconds": seconds, "exact": exact}), flush=True)
    dist.barrier()


main()
