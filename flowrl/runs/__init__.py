"""Runs of the command line and their directories: recorded, shown, gone on with, compared and evaluated."""
