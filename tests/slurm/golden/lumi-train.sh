#!/bin/bash
#SBATCH --job-name=sl
#SBATCH --account=b25
#SBATCH --partition=standard-g
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=7
#SBATCH --mem=240G
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
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=PHB
export CXI_FORK_SAFE=1
export CXI_FORK_SAFE_HP=1
export FI_CXI_DISABLE_CQ_HUGETLB=1
export HSA_ENABLE_SDMA=0
export MIOPEN_USER_DB_PATH=/tmp/scion-miopen
export MIOPEN_CUSTOM_CACHE_DIR=/tmp/scion-miopen

# Software.
load_modules --use /appl/local/laifs/modules lumi-aif-singularity-bindings

# The step: 4 x 4 tasks; slurm/task.sh gives each its rank and becomes the command.
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --wait=300 \
    bash slurm/task.sh \
    singularity exec \
    --bind /home/ana/scion \
    --bind /home/ana/scratch \
    --bind /scratch/runs/sl \
    --bind /scratch/data/sl \
    --pwd /home/ana/scion /appl/local/laifs/containers/lumi-multitorch-u24r70f21m50t210-20260415_130625/lumi-multitorch-full-u24r70f21m50t210-20260415_130625.sif \
    python -m recipes.train \
    --recipe gams/focus \
    --output /scratch/runs/sl \
    'data.train=[/scratch/data/sl]'
