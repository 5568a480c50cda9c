"""The algorithms, one per file: `flowrl run plans/NAME.py` runs one; `from flowrl.plans import DQN` is its Trainer."""

from flowrl._lazy import classes, lazy

_names = classes(__name__, __file__, r"((?!Config\b|\w*Settings\b)\w+)\(")
__all__ = sorted(_names)
__getattr__, __dir__ = lazy(__name__, _names)
