"""The sandbox in a Docker container. `backend.py` says how it is isolated, and what it does not protect against."""

from fpenv.sandbox.docker.backend import DEFAULT_IMAGE, DockerBackend, DockerSandbox, build_image, prune

__all__ = ["DEFAULT_IMAGE", "DockerBackend", "DockerSandbox", "build_image", "prune"]
