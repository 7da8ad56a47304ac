#!/bin/bash
#SBATCH --job-name=sl
#SBATCH --account=b25
#SBATCH --partition=booster
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=72
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@600
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/scratch/runs/sl/logs/%x-%j.log

set -euo pipefail

# Everything runs from the checkout; environment.sh sets PYTHONPATH, offline switches and the address of the first node.
cd -- /home/ana/scion
export SCION_CACHE_DIR=/e/scratch/b25/scion_cache
export SCION_ADDRESS_IPV4=1
source slurm/environment.sh

# The network and other settings of this cluster.
export NCCL_NET=IB
export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3
export NCCL_SOCKET_IFNAME=ib0
export NCCL_SOCKET_FAMILY=AF_INET
export NCCL_IB_TIMEOUT=18
export NCCL_IB_RETRY_CNT=20
export NCCL_NET_GDR_LEVEL=2
export NCCL_NET_GDR_READ=1
export NCCL_PROTO=Simple

# The step: 4 x 4 tasks; slurm/task.sh gives each its rank and becomes the command.
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --wait=300 \
    --mpi=none \
    --cpu-bind=socket \
    bash slurm/task.sh \
    apptainer exec \
    --nv \
    --bind /home/ana/scion \
    --bind /e/scratch/b25 \
    --bind /scratch/runs/sl \
    --bind /scratch/data/sl \
    --pwd /home/ana/scion /e/scratch/b25/scion_cache/nemo-25.11-aarch64.sif \
    python -m recipes.train \
    --recipe gams/focus \
    --output /scratch/runs/sl \
    'data.train=[/scratch/data/sl]'
