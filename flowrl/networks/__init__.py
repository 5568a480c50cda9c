"""What policies and models are made of and knows none of them: networks, heads, distributions, and how they compute.

`flowrl.policies` has the names that a network of one's own needs.
"""
