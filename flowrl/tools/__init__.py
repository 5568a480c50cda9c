"""What works on runs and plans: the commands, and Python, call it."""
