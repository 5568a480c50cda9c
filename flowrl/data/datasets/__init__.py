"""Datasets on disk: written while experience is collected, read without loading them whole."""
