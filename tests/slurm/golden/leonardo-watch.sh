#!/bin/bash
#SBATCH --job-name=watch-sl
#SBATCH --account=b25
#SBATCH --partition=boost_usr_prod
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=120G
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --array=0-5%2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/scratch/runs/sl_evaluations/slurm_logs/%A_%a.log

set -euo pipefail

# Everything runs from the checkout; environment.sh sets PYTHONPATH, offline switches and the address of the first node.
cd -- /home/ana/scion
export SCION_CACHE_DIR=/leonardo_work/EUHPC_X/scion_cache
source slurm/environment.sh

# The network and other settings of this cluster.
export NCCL_NET=IB

# The step: 1 x 1 tasks; slurm/task.sh gives each its rank and becomes the command.
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash slurm/task.sh \
    singularity exec \
    --nv \
    --bind /home/ana/scion \
    --bind /leonardo_work/EUHPC_X \
    --bind /scratch/runs/sl \
    --bind /scratch/runs/sl_evaluations \
    --bind '/scratch/held out.txt' \
    --bind /scratch/eval_data \
    --pwd /home/ana/scion /leonardo_work/EUHPC_X/scion_cache/nemo-25.11.sif \
    python -m eval.watch \
    --run /scratch/runs/sl \
    --output /scratch/runs/sl_evaluations \
    --idle-minutes 30 \
    -- \
    --text \
    'sl=/scratch/held out.txt' \
    --tasks sl_generative \
    --data /scratch/eval_data
