"""The algorithms: one a file, each runs by `flowrl run plans/NAME.py`."""
