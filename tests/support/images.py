"""Images for machines that reach no image registry: made of Debian's packages, under the names that the stack uses.

What pip and TLS need on this machine to reach a package index goes in as well, so the images are for tests alone.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

SUITE = "bookworm"
PYTHON = ("python3", "python3-venv", "python-is-python3", "ca-certificates", "netbase", "tzdata")
PROMETHEUS = ("prometheus", "ca-certificates")
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
# What says where packages come from, of all that pip can be told.
_PIP_SETTINGS = ("index-url", "find-links", "cert", "proxy", "trusted-host")


class ImageError(Exception):
    """An image that can neither be pulled nor made here; the text says why."""


def is_present(image: str) -> bool:
    return _run("docker", "image", "inspect", image).returncode == 0


def pull(image: str) -> bool:
    return _run("docker", "pull", "--quiet", image).returncode == 0


def make_python_image(image: str) -> None:
    """A Debian with Python, as slim as the official one. Raises ImageError."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch, "pip.conf")
        lines, directories = _pip_settings()
        settings.write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
        hooks = [f"upload {settings} /etc/pip.conf"]
        if _AUTHORITIES.exists():
            hooks.append(f"upload {_AUTHORITIES} {_AUTHORITIES}")
        for directory in directories:
            hooks += [f'mkdir -p "$1{directory.parent}"', f"copy-in {directory} {directory.parent}"]
        _make(image, PYTHON, hooks)


def make_prometheus_image(image: str) -> None:
    """Prometheus where the official image has it, its data directory its user's own. Raises ImageError."""
    hooks = ['install -d -o 65534 -g 65534 "$1/prometheus"']
    _make(image, PROMETHEUS, hooks, "--change", 'ENTRYPOINT ["/bin/prometheus"]')


def _make(image: str, packages: Sequence[str], hooks: Sequence[str], *settings: str) -> None:
    if shutil.which("mmdebstrap") is None:
        raise ImageError(f"{image} is not here and cannot be pulled, and there is no mmdebstrap to make one")
    with tempfile.TemporaryDirectory() as scratch:
        archive = str(Path(scratch, "image.tar"))
        options = ["--variant=minbase", f"--include={','.join(packages)}"]
        options += [f"--customize-hook={hook}" for hook in hooks]
        made = _run("mmdebstrap", *options, SUITE, archive)
        if made.returncode != 0:
            raise ImageError(f"mmdebstrap cannot make {image}: {made.stderr[-2000:]}")
        imported = _run("docker", "import", *settings, archive, image)
        if imported.returncode != 0:
            raise ImageError(f"the engine does not take {image}: {imported.stderr}")


def _pip_settings() -> tuple[list[str], list[Path]]:
    """Lines for a pip.conf that say what pip is told here, and the directories that they name."""
    lines, directories = [], []
    for line in _run("pip", "config", "list").stdout.splitlines():
        name, _, value = line.partition("=")
        scope, _, key = name.rpartition(".")
        if scope == "global" and key in _PIP_SETTINGS:
            value = value.strip("'")
            lines.append(f"{key} = {value}")
            directories += [Path(part) for part in value.split() if Path(part).is_dir()]
    return lines, directories


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True)
