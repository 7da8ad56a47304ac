#!/bin/bash
#SBATCH --job-name=sl
#SBATCH --account=b25
#SBATCH --partition=acc
#SBATCH --qos=acc_ehpc
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=20
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
export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_4,mlx5_5
export NCCL_SOCKET_IFNAME=ib0,ib1,ib2,ib3
export NCCL_NVLS_ENABLE=0

# Software.
load_modules singularity

# The step: 4 x 4 tasks; slurm/task.sh gives each its rank and becomes the command.
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --wait=300 \
    bash slurm/task.sh \
    singularity exec \
    --nv \
    --bind /home/ana/scion \
    --bind /home/ana/scratch \
    --bind /scratch/runs/sl \
    --bind /scratch/data/sl \
    --pwd /home/ana/scion /home/ana/scratch/scion_cache/nemo-25.11.sif \
    python -m recipes.train \
    --recipe gams/focus \
    --output /scratch/runs/sl \
    'data.train=[/scratch/data/sl]'
