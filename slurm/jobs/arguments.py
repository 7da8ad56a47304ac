"""Command-line arguments that every command for a cluster takes, and what they mean."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from common.options import add_option
from slurm.jobs.job import ROOT, parse_time_limit
from slurm.sites.cluster import Cluster, cluster_names, load_cluster


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """The cluster and what differs from its file."""
    add_option(parser, "--cluster", f"cluster to run on: bundled ({', '.join(cluster_names())}), or a YAML file of your own", required=True)
    add_option(parser, "--account", "Slurm account to charge; short for --set account=NAME")
    add_option(parser, "--set key=value", "override of the cluster file, for example runtime.image=/scratch/nemo.sif", [], action="append")


def add_time_argument(parser: argparse.ArgumentParser) -> None:
    """The time limit of a job."""
    add_option(parser, "--time HH:MM:SS", "time limit of each job (default: that of the partition)")


def output_directory(text: str) -> Path:
    """The directory that an argument names, absolute; for `type=`.

    Raises:
        argparse.ArgumentTypeError: for none at all, and for the checkout or what it lies in, which would become a run's.
    """
    path = Path(os.path.abspath(text))
    if not text.strip() or ROOT.is_relative_to(path):
        raise argparse.ArgumentTypeError(
            f"{text!r} is {'not a directory' if not text.strip() else 'the checkout or a parent of it'}; give a separate directory"
        )
    return path


def cluster_of(arguments: argparse.Namespace) -> Cluster:
    """The cluster that the arguments name."""
    account = [f"account={arguments.account}"] if arguments.account else []
    return load_cluster(arguments.cluster, (*arguments.set, *account))


def time_limit_of(arguments: argparse.Namespace, cluster: Cluster, *, kind: str) -> int:
    """Seconds that a job of a kind may take."""
    return parse_time_limit(arguments.time or cluster.partition_of(kind).time_limit)
