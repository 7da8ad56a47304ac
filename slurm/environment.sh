# shellcheck shell=bash
# What every job needs, whatever the cluster; sourced by each job script after `cd` to the checkout.

# The commands run from the checkout, in every process that they start; what the login shell had on its path may be for another Python.
export PYTHONPATH="$PWD"
export PYTHONNOUSERSITE=1 # packages in ~/.local would hide those of a container

# Nothing is downloaded on a compute node: a missing file is an error at once instead of a time-out after minutes.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_EVALUATE_OFFLINE=1
export WANDB_MODE="${WANDB_MODE:-offline}"
export PIP_NO_INDEX=1

# Caches that slurm.prefetch filled on the login node, where the cluster file names a scratch directory.
if [ -n "${SCION_CACHE_DIR:-}" ]; then
    export HF_HOME="$SCION_CACHE_DIR/huggingface"
fi

# Addresses: the first node of the allocation, where this runs (what scontrol prints may begin with words of the site), and a port of the job's own, as jobs may share a node (array members have job ids of their own).
# A site may have another name for a node on its fast network, or names that stand first for IPv6, which its nodes cannot use.
MASTER_ADDR="${SLURMD_NODENAME:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}${SCION_ADDRESS_SUFFIX:-}"
if [ -n "${SCION_ADDRESS_IPV4:-}" ]; then
    SCION_ADDRESSES="$(getent ahostsv4 "$MASTER_ADDR")" || {
        echo "error: $MASTER_ADDR has no IPv4 address; see address_suffix and address_ipv4 in the cluster file" >&2
        exit 1
    }
    MASTER_ADDR="${SCION_ADDRESSES%%[[:space:]]*}"
fi
MASTER_PORT="$((20000 + SLURM_JOB_ID % 10000))"
export MASTER_ADDR MASTER_PORT

# By which the nodes of a Ray cluster in this job know each other (slurm/ray_nodes.py).
RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export RAY_AUTH_TOKEN

# One thread per core that a task was given; Megatron overlaps communication only with one hardware queue.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}"
export CUDA_DEVICE_MAX_CONNECTIONS=1

# Modules of the site, nothing else of what the login shell had loaded.  A batch shell is no login shell and may not know `module` yet, and the
# sites' scripts behind it read variables that are not set.  `--use DIRECTORY` comes ahead of the modules.
load_modules() {
    set +u
    if ! type module >/dev/null 2>&1; then
        local file
        for file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do
            # shellcheck source=/dev/null
            if [ -r "$file" ]; then source "$file"; fi
        done
    fi
    module purge
    while [ "$1" = --use ]; do
        module use "$2"
        shift 2
    done
    module load "$@"
    set -u
}
