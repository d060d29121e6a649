"""A worker of Beam's DirectRunner as a process of its own: `python -m lmrep.data.store.beam.local_worker`.

It is Beam's worker, except that it logs nothing, since the pipeline raises its errors, that it leaves Ctrl-C to its
parent, and that it ends when its parent does."""

import logging
import os
import signal
import sys
import threading
import time


def main() -> None:
    """Serves the pipeline that the environment names."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger().addHandler(logging.NullHandler())  # otherwise Beam adds one that prints
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
