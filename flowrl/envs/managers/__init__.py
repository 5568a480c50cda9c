"""Managers: several environments stepped together, in this process, in others, in threads or vectorised."""
