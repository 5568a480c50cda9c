"""Inspecting a plan or a run: text tree, picture, check before the run, breakpoints."""
