"""Fingerprints of what every small variant of a plan learns and reports, to compare two trees bit for bit.

Run it before and after a change that must not change results, on one machine, and compare what is printed:

    python tests/plans/fingerprints.py > before.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

RESULTS = 8


def main(names: list[str]) -> None:
    from flowrl.storage.fingerprint import fingerprint
    from tests.plans.small import SMALL, final, weights

    for name in names or sorted(SMALL):
        results, state = final(name, RESULTS)
        print(f"{name:24} parameters {fingerprint(weights(state))}  metrics {fingerprint(results)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
