"""`python -m flowrl` is the command `flowrl`."""

from __future__ import annotations

from flowrl.cli.main import main

if __name__ == "__main__":
    main()
