"""What tests of the commands have, too."""

from tests.cli.conftest import child, folder, run, whole

__all__ = ["child", "folder", "run", "whole"]
