"""What the ranks of a cluster's job return, as threads of a test or as processes of their own."""

import concurrent.futures

import tally
from cluster import JOB


def at_all(cluster, work, but=()):
    """What `work(job)` returns or raises at each rank."""

    def one(rank):
        try:
            with tally.Job(JOB, rank, cluster.workers, cluster.socket(rank), timeout=30) as job:
                return work(job)
        except Exception as error:
            return error

    ranks = [rank for rank in range(cluster.workers) if rank not in but]
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks))


def good(outcomes):
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def texts(outcomes):
    """What processes printed that ended well, from `Cluster.run`."""
    for rank, (code, text) in enumerate(outcomes):
        assert code == 0, f"rank {rank} ends with {code}:\n{text}"
    return [text for _, text in outcomes]
