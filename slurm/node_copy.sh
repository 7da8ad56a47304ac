#!/usr/bin/env bash
# Started by srun once per node: `unpack FILE.tar` ahead of the step, `remove` behind it.
# A shared file system then serves each node one large file instead of thousands of small ones to each rank.
set -euo pipefail

copy="$SCION_NODE_COPY.$SLURMD_NODENAME"

# A job that was cancelled or lost its time could not remove its own.
remove_those_of_ended_jobs() {
    local running name old
    running="$(squeue --noheader --me --format=%A)" || return 0
    for old in "${SCION_NODE_COPY%.*}".*."$SLURMD_NODENAME"{,.partial}; do
        name="${old#"${SCION_NODE_COPY%.*}."}"
        if [ -O "$old" ] && ! grep --quiet --line-regexp --fixed-strings "${name%%.*}" <<<"$running"; then
            rm -rf -- "$old"
        fi
    done
}

case "$1" in
unpack)
    remove_those_of_ended_jobs
    rm -rf -- "$copy" "$copy.partial" # of the same job before it was queued again
    mkdir -- "$copy.partial"
    if ! tar --extract --file "$2" --directory "$copy.partial"; then
        rm -rf -- "$copy.partial"
        echo "error: $SLURMD_NODENAME could not unpack $2 to $copy; make room there, or set runtime.node_dir to another place or null" >&2
        exit 1
    fi
    mv -- "$copy.partial" "$copy"
    ;;
remove)
    rm -rf -- "$copy"
    ;;
esac
