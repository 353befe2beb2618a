"""Runs Python programs at every rank, each in a child of one process that has imported torch: the
import takes longer than most programs of the tests.

Reads lines from its standard input, each a JSON object: `source`, `arguments`, `timeout` in
seconds, and for each rank its `environments` and the path of its output in `outputs`. Prints the
ranks' exit codes, as `subprocess` would give them. The children have a process group of their own,
which ends with them; SIGTERM ends it, too.
"""

import contextlib
import json
import os
import signal
import sys
import time

# The second one is what optimizers import when they are first used.
import torch._dynamo  # noqa: F401
import torch.distributed  # noqa: F401


def main():
    for line in sys.stdin:
        given = json.loads(line)
        children = []
        signal.signal(signal.SIGTERM, lambda *_: (end(children), os._exit(1)))
        for environment, output in zip(given["environments"], given["outputs"]):
            child = os.fork()
            if child == 0:
                os.setpgid(0, children[0] if children else 0)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                return become(given, environment, output)
            # Here too, since the next child may come first.
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(child, children[0] if children else child)
            children.append(child)
        print(json.dumps(codes(children, given["timeout"])), flush=True)
        end(children)
        # Their numbers may be those of others now.
        children.clear()
    return None


def end(children):
    """What is left of their group."""
    with contextlib.suppress(IndexError, ProcessLookupError):
        os.killpg(children[0], signal.SIGKILL)


def become(given, environment, output):
    """In a rank's process: what `python -c` finds. Returns the program."""
    os.environ.clear()
    os.environ.update(environment)
    into = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, to in ((nothing, 0), (into, 1), (into, 2)):
        os.dup2(file, to)
    sys.argv = ["-c", *given["arguments"]]
    return compile(given["source"], "<string>", "exec")


def codes(children, timeout):
    """The exit codes of all; those that still run after `timeout` are aborted, then killed."""
    left, found = dict(enumerate(children)), {}
    start, sent = time.monotonic(), None
    while left:
        for rank, child in list(left.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                found[rank] = os.waitstatus_to_exitcode(status)
                del left[rank]
        late = time.monotonic() - start - timeout
        wanted = signal.SIGKILL if late > 5 else signal.SIGABRT if late > 0 else None
        if wanted != sent:
            for child in left.values():
                os.kill(child, wanted)
            sent = wanted
        time.sleep(0.01)
    return [found[rank] for rank in range(len(children))]


program = main()
if program is not None:
    # At the end of the file, so that the program ends and fails as if it were all of it.
    exec(program, {"__name__": "__main__", "__builtins__": __builtins__})
