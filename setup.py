"""Says where packages are in a checkout without symbolic links, as git makes on Windows; setup.cfg has all else."""

from pathlib import Path

from setuptools import setup

LINKS = ("operators", "plans")  # flowrl/NAME links to NAME; without links git writes a text file

if all(Path(__file__).parent.joinpath("flowrl", name).is_dir() for name in LINKS):
    setup()
else:
    setup(package_dir={"": ".", **{f"flowrl.{name}": name for name in LINKS}})
