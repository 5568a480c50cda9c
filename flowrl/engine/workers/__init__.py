"""What leaves the thread of a run: requests to workers, the parts of plans that they run, and their answers."""
