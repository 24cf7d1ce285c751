"""For all tests: one thread per process, for two of them share the machine's cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, also in the processes that tests start
