"""`python -m flowrl` is the command `flowrl`."""

from __future__ import annotations

from flowrl.cli import main

if __name__ == "__main__":
    main()
