"""The names of `flowrl.models`, whose first models were of rewards."""

from flowrl.models import *  # noqa: F403
