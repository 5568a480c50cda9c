"""Replay buffers: storage of rows, sequences, episodes and objects, and sampling from it."""
