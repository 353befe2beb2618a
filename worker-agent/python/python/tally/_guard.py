"""Guard of :mod:`tally.local`: kills a launcher's processes once it has ended.

``python -I -S _guard.py FOLDER KEEP`` reads standard input, which only the launcher holds open. At
its end every process with ``TALLY_LOCAL=FOLDER`` in its environment gets SIGKILL. FOLDER is removed
unless KEEP is ``keep``.

The environment finds children of ranks too, in any session. Only the standard library is imported,
so that the guard starts at once.
"""

import os
import shutil
import signal
import sys
import time


def processes(marker: bytes) -> "list[int]":
    """Processes of this user with ``marker`` in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = file.read().split(b"\0")
        except OSError:
            # Another user's process, or one that has ended.
            continue
        if marker in environment:
            found.append(int(name))
    return found


def main() -> None:
    folder, keep = sys.argv[1:3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    marker = b"TALLY_LOCAL=" + os.fsencode(folder)
    # A process may fork between the listing and the signal. Zombies have no environment.
    deadline = time.monotonic() + 10
    while (found := processes(marker)) and time.monotonic() < deadline:
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.005)
    if keep != "keep":
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
