"""Definitions of container images: our pinned packages on NVIDIA's and AMD's."""
