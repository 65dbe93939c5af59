#!/usr/bin/env bash
# One node's part of a job: `node.sh SCRIPT ...` or `node.sh -m MODULE ...`, started once a node by srun, ssh or by hand.
#
#   NODES  how many nodes there are            [Slurm's]
#   NODE   which of them this is, from 0       [Slurm's]
#   HEAD   the first node, as the others reach it
#   RANKS  ranks on each node                  [the GPUs here, else 1]
#   PORT   of the ranks' store on HEAD         [29500]
set -euo pipefail

stop() {
    echo "error: node.sh: $1" >&2
    exit 2
}

NODES=${NODES:-${SLURM_NNODES:-}}
NODE=${NODE:-${SLURM_NODEID:-}}
[[ $NODES =~ ^[1-9][0-9]*$ ]] || stop "NODES='$NODES' is no number of nodes; set it, or start this by srun"
[[ $NODE =~ ^[0-9]+$ ]] || stop "NODE='$NODE' is no number of a node; set it, or start this by srun"
((NODE < NODES)) || stop "NODE=$NODE, but there are $NODES nodes, numbered from 0"
[[ -n ${HEAD:-} ]] || stop "HEAD is not set; give the first node's name or address"
(($# > 0)) || stop "nothing to run; give a script, or -m and a module"

if [[ -z ${RANKS:-} ]]; then
    RANKS=$(nvidia-smi --list-gpus 2>/dev/null | grep -c . || true)
    ((RANKS > 0)) || RANKS=1
fi
exec torchrun --nnodes "$NODES" --node-rank "$NODE" --nproc-per-node "$RANKS" \
    --master-addr "$HEAD" --master-port "${PORT:-29500}" "$@"
