"""Shared base of all stages: manifests and atomic outputs, the command line, progress, pages, tables, processes; imports no stage."""

VERSION = "0.2.0"
