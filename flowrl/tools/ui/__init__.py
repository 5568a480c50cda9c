"""`flowrl ui`: a local page on runs, those that go on and those that have ended."""

from flowrl.tools.ui.server import serve

__all__ = ["serve"]
