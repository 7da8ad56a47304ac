#!/bin/bash
#SBATCH --job-name=data
#SBATCH --account=b25
#SBATCH --partition=booster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=288
#SBATCH --exclusive
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

# Settings of this job.
export TOPIC='a b'

# Before the step, on the first node; a failure ends the job.
python -m slurm.jobs.provenance \
    --output /scratch/text/run

# The step: 1 x 1 tasks; slurm/task.sh gives each its rank and becomes the command.
# The time limit and scancel end this shell too, unless it waits for the step and does what follows.
trap ':' TERM
SCION_EXIT_CODE=0
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    --mpi=none \
    bash slurm/task.sh \
    apptainer exec \
    --bind /home/ana/scion \
    --bind /e/scratch/b25 \
    --bind /scratch \
    --pwd /home/ana/scion /e/scratch/b25/scion_cache/nemo-25.11-aarch64.sif \
    python -m data_prep.dedup \
    --corpora corpora.yaml \
    --output /scratch/text || SCION_EXIT_CODE=$?
export SCION_EXIT_CODE

# After the step.
touch /scratch/done
exit "$SCION_EXIT_CODE"
