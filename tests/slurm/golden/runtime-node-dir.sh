#!/bin/bash
#SBATCH --job-name=sl
#SBATCH --account=b25
#SBATCH --partition=gpu
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@600
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/scratch/runs/sl/logs/%x-%j.log

set -euo pipefail

# Everything runs from the checkout; environment.sh sets PYTHONPATH, offline switches and the address of the first node.
cd -- /home/ana/scion
export SCION_CACHE_DIR=/home/ana/scratch/scion_cache
source slurm/environment.sh

# The network and other settings of this cluster.
export NCCL_NET=IB

# Software.
load_modules python/3.11
export PATH=/home/ana/scion/.venv/bin:"$PATH"
export SCION_NODE_COPY=/tmp/scion_environment."$SLURM_JOB_ID"
srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --cpus-per-task=1 bash slurm/node_copy.sh unpack /home/ana/scratch/scion_cache/environment.tar
trap 'srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --cpus-per-task=1 bash slurm/node_copy.sh remove || true' EXIT

# The step: 4 x 4 tasks; slurm/task.sh gives each its rank and becomes the command.
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --wait=300 \
    bash slurm/task.sh \
    python -m recipes.train \
    --recipe gams/focus \
    --output /scratch/runs/sl \
    'data.train=[/scratch/data/sl]'
