"""The version, apart from everything else: what asks for it need not import flowrl."""

__version__ = "0.1.0"
