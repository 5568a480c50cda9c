"""Actors: objects called by `submit(method, *args)`, in this process or on Ray."""
