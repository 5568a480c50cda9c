"""Managers step several environments together: in this process, in others, in threads, or vectorized."""
