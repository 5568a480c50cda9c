"""What all tests need, before anything imports ray or torch."""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small networks only wait for further threads
