"""Environments of other libraries, converted to gymnasium's interface."""
