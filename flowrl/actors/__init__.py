"""Actors: objects that are asked by `submit(method, *args)`, in this process or on Ray."""
