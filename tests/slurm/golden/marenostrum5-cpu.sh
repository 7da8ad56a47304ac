#!/bin/bash
#SBATCH --job-name=data
#SBATCH --account=b25
#SBATCH --partition=gpp
#SBATCH --qos=gp_ehpc
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=112
#SBATCH --time=01:00:00
#SBATCH --array=0-11%4
#SBATCH --dependency=afterok:17:18
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --exclude=gn03
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/scratch/logs/%x-%j.log

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

# Settings of this job.
export TOPIC='a b'

# Software.
load_modules singularity

# Before the step, on the first node; a failure ends the job.
python -m slurm.jobs.provenance \
    --output /scratch/text/run

# The step: 1 x 1 tasks; slurm/task.sh gives each its rank and becomes the command.
# The time limit and scancel end this shell too, unless it waits for the step and does what follows.
trap ':' TERM
SCION_EXIT_CODE=0
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash slurm/task.sh \
    singularity exec \
    --bind /home/ana/scion \
    --bind /home/ana/scratch \
    --bind /scratch \
    --pwd /home/ana/scion /home/ana/scratch/scion_cache/nemo-25.11.sif \
    python -m data_prep.dedup \
    --corpora corpora.yaml \
    --output /scratch/text || SCION_EXIT_CODE=$?
export SCION_EXIT_CODE

# After the step.
touch /scratch/done
exit "$SCION_EXIT_CODE"
