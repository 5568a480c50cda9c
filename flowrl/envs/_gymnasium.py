"""Says in one line if gymnasium is too old, before an import of a part that it lacks fails."""

import logging
import re

import gymnasium

#: Below the first, vector environments do not say how they reset themselves (T1, T2, T3); tests ran with the second.
FLOOR, TESTED = (1, 1, 1), (1, 4)
found = tuple(map(int, re.findall(r"\d+", gymnasium.__version__)[:3]))
REMEDY = "another package may have pulled it down: pip install 'gymnasium>=1.4', in an environment without that package"

if found < FLOOR:
    raise ImportError(f"flowrl needs gymnasium 1.1.1 or later, and this is {gymnasium.__version__}; {REMEDY}")
if found < TESTED:
    logging.getLogger("flowrl").warning(
        "gymnasium %s is older than 1.4, with which flowrl is tested; %s", gymnasium.__version__, REMEDY
    )
