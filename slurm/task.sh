#!/usr/bin/env bash
# Started by srun once per task: derives the ranks from Slurm and becomes the command that it is given.
set -euo pipefail

export RANK="$SLURM_PROCID"
export LOCAL_RANK="$SLURM_LOCALID"
export WORLD_SIZE="$SLURM_NTASKS"
export LOCAL_WORLD_SIZE="$((SLURM_NTASKS / SLURM_NNODES))"
export GROUP_RANK="$SLURM_NODEID"

# What differs by GPU of a node, as the cluster file has it: a list for each variable, of which a task takes the value of its local rank.
for list in "${!SCION_BY_RANK_@}"; do
    read -ra values <<<"${!list}"
    export "${list#SCION_BY_RANK_}=${values[SLURM_LOCALID]}"
done

# Where the cluster file has the environment unpacked on each node (slurm/node_copy.sh), its Python comes first.
if [ -n "${SCION_NODE_COPY:-}" ]; then
    export PATH="$SCION_NODE_COPY.$SLURMD_NODENAME/bin:$PATH"
fi

# Slurm signals every process of a step.  Ignored here and in what this starts, SIGUSR1 ends nothing by accident (a container's parent,
# a data loader); a training process that installs a handler gets it all the same.
trap '' USR1

exec "$@"
