"""Environments of other libraries, converted once at the border."""
