#!/bin/bash
#SBATCH --job-name=sl
#SBATCH --account=b25
#SBATCH --partition=booster
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=24
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@600
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/scratch/runs/sl/logs/%x-%j.log

set -euo pipefail

# Everything runs from the checkout; environment.sh sets PYTHONPATH, offline switches and the address of the first node.
cd -- /home/ana/scion
export SCION_CACHE_DIR=/e/scratch/b25/scion_cache
export SCION_ADDRESS_SUFFIX=i
source slurm/environment.sh

# The network and other settings of this cluster.
export NCCL_NET=IB
export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3
export NCCL_SOCKET_IFNAME=ib0
export GLOO_SOCKET_IFNAME=ib0
export NCCL_SOCKET_FAMILY=AF_INET
export NCCL_IB_TIMEOUT=18
export NCCL_IB_RETRY_CNT=20
export NCCL_NET_GDR_LEVEL=2
export NCCL_NET_GDR_READ=1
export SCION_BY_RANK_UCX_NET_DEVICES='mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1'

# The step: 4 x 4 tasks; slurm/task.sh gives each its rank and becomes the command.
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --wait=300 \
    bash slurm/task.sh \
    singularity exec \
    --nv \
    --bind /home/ana/scion \
    --bind /e/scratch/b25 \
    --bind /scratch/runs/sl \
    --bind /scratch/data/sl \
    --pwd /home/ana/scion /e/scratch/b25/scion_cache/nemo-25.09.sif \
    python -m recipes.train \
    --recipe gams/focus \
    --output /scratch/runs/sl \
    'data.train=[/scratch/data/sl]'
