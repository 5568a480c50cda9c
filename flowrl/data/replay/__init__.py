"""Replay buffers: what they keep, in which order, and what is drawn from them."""
