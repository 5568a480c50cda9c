"""The command line, and the runs that it starts."""
