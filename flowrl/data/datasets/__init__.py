"""Datasets on disk: written during collection, read without loading them whole."""
