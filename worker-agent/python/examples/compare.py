"""Trains the examples with Gloo and with Tally, several seeds each, and prints how they compare, as
docs/TRAINING.md has it.

    python examples/compare.py [--seeds 5] [digits_ddp.py chars_ddp.py]

4 workers on 4 hosts, each a network namespace with an agent, and a real switch between them. Needs
root.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent / "tests"))
from cluster import Cluster

WORKERS = 4
GLOO = "Gloo"
# The columns are a name and the example's options. Of the wires, `plain` changes the backend's name
# and no more.
RUNS = {
    GLOO: ["--backend", "gloo"],
    "Gloo, data of the ranks exchanged": ["--backend", "gloo", "--turn", "1"],
    "Tally": ["--backend", "tally", "--wire", "plain", "fixed", "bf16", "f16"],
}
WIRES = {
    "plain": "Tally, native f32",
    "fixed": "Tally, block fixed point",
    "bf16": "Tally, bf16",
    "f16": "Tally, f16",
}


def run(cluster, example, options, seeds):
    """The losses by step and the result of each training, by wire."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
    command += [str(FOLDER / example), "--print-steps", *options, "--seed", *map(str, seeds)]
    done = subprocess.run(command, env=cluster.launcher_environment(), stdout=subprocess.PIPE, text=True, check=True)
    by_wire, losses = {}, []
    for line in done.stdout.splitlines():
        if line.startswith("step "):
            losses.append(float(line.split()[3]))
        else:
            result = json.loads(line)
            by_wire.setdefault(result["wire"], []).append((losses, result))
            losses = []
    return by_wire


def differences(trainings, references, steps):
    """The greatest difference of a step's loss, over the seeds, within the first steps."""
    return max(
        abs(loss - other)
        for (losses, _), (others, _) in zip(trainings, references)
        for loss, other in list(zip(losses, others, strict=True))[:steps]
    )


def compare(cluster, example, seeds):
    rows = {}
    for name, options in RUNS.items():
        for wire, trainings in run(cluster, example, options, seeds).items():
            rows[WIRES[wire] if name == "Tally" else name] = trainings
    references = rows[GLOO]
    steps = len(references[0][0])
    accuracies = {name: [result["accuracy"] for _, result in it] for name, it in rows.items()}
    low, high = min(accuracies[GLOO]), max(accuracies[GLOO])
    print(f"\n`{example}`, {steps} steps, seeds {', '.join(map(str, seeds))}:\n")
    print(f"| | difference of losses, first {steps // 4} steps | all {steps} steps | accuracy by seed | mean |")
    print("|---|---|---|---|---|")
    for name, trainings in rows.items():
        early, all_ = (differences(trainings, references, it) for it in (steps // 4, steps))
        by_seed = ", ".join(f"{100 * it:.2f}" for it in accuracies[name])
        mean = statistics.mean(accuracies[name])
        print(f"| {name} | {early:.1e} | {all_:.1e} | {by_seed} | {100 * mean:.2f} |")
    outside = [name for name, it in accuracies.items() if not low <= statistics.mean(it) <= high]
    said = ", ".join(outside) if outside else "none"
    print(f"\nGloo's accuracy is from {100 * low:.2f} to {100 * high:.2f} %. Means outside of that: {said}.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("examples", nargs="*", default=["digits_ddp.py", "chars_ddp.py"])
    given = parser.parse_args()
    with Cluster(WORKERS, join_ms=60_000) as cluster:
        for example in given.examples:
            compare(cluster, example, range(1, given.seeds + 1))


if __name__ == "__main__":
    main()
