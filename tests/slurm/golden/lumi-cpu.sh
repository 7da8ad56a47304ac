#!/bin/bash
#SBATCH --job-name=data
#SBATCH --account=b25
#SBATCH --partition=standard
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=128
#SBATCH --mem=0
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
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=PHB
export CXI_FORK_SAFE=1
export CXI_FORK_SAFE_HP=1
export FI_CXI_DISABLE_CQ_HUGETLB=1
export HSA_ENABLE_SDMA=0
export MIOPEN_USER_DB_PATH=/tmp/scion-miopen
export MIOPEN_CUSTOM_CACHE_DIR=/tmp/scion-miopen

# Settings of this job.
export TOPIC='a b'

# Software.
load_modules --use /appl/local/laifs/modules lumi-aif-singularity-bindings

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
    --pwd /home/ana/scion /appl/local/laifs/containers/lumi-multitorch-u24r70f21m50t210-20260415_130625/lumi-multitorch-full-u24r70f21m50t210-20260415_130625.sif \
    python -m data_prep.dedup \
    --corpora corpora.yaml \
    --output /scratch/text || SCION_EXIT_CODE=$?
export SCION_EXIT_CODE

# After the step.
touch /scratch/done
exit "$SCION_EXIT_CODE"
