"""Tests of the command line; a package, so that its conftest and that of all tests are two modules."""
