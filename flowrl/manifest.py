"""Manifests: what a folder that flowrl wrote says of itself, first of all what it is, and in which version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowrl import __version__
from flowrl.files import checksum

MANIFEST = "manifest.json"


def signed_manifest(what: str, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """What to write of a "checkpoint" or a "dataset" in this version of its format; `body` is as JSON has it."""
    manifest = {"format": f"flowrl {what}", "version": version, "flowrl": __version__, **body}
    return {**manifest, "sha256": checksum(manifest)}


def read_manifest(path: Path, what: str, version: int, error: type[Exception]) -> dict[str, Any]:
    """The manifest in a folder, without its checksum; what it holds beyond that is yet to be looked at.

    Raises: `error` for what is something else, newer than `version`, or damaged.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise error(f"{path} is no {what} of flowrl: it has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as why:
        raise error(f"{path} is damaged: its {MANIFEST} cannot be read: {why}") from why
    if not isinstance(manifest, dict) or manifest.get("format") != f"flowrl {what}":
        raise error(f"{path} is no {what} of flowrl: its {MANIFEST} is that of something else")
    if not isinstance(manifest.get("version"), int) or manifest["version"] > version:
        raise error(
            f"{path} has format {manifest.get('version')}, written by flowrl {manifest.get('flowrl')}; "
            f"this is flowrl {__version__}, which reads formats up to {version}: upgrade flowrl"
        )
    if manifest.pop("sha256", None) != checksum(manifest):
        raise error(f"{path} is damaged: its {MANIFEST} is not what was written (its checksum differs)")
    return manifest
