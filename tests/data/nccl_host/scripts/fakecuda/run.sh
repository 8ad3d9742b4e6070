#!/bin/bash
# run.sh SCENARIO WORLD OUT [STEPS]: all ranks of one scenario; logs and recordings land in OUT. Ends by itself
# (TIMEOUT seconds, default 60), whatever hangs. Apache-2.0, the trainwarden project.
set -u
here=$(cd "$(dirname "$0")" && pwd)
scenario=$1 world=$2 out=$3 steps=${4:-10}
mkdir -p "$out"; rm -f "$out"/id-*
export FAKECUDA_FILE=/dev/shm/fakecuda-$$ FAKECUDA_GPUS=$world TWREC_DIR=$out
export LD_LIBRARY_PATH=$FAKECUDA_BUILD:${LD_LIBRARY_PATH:-}
export NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_IB_DISABLE=1 \
  NCCL_SOCKET_IFNAME=lo NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-2} NCCL_DEBUG=${NCCL_DEBUG:-INFO} NCCL_DEBUG_SUBSYS=${NCCL_DEBUG_SUBSYS:-INIT,ENV,RAS}
rm -f "$FAKECUDA_FILE"
pids=()
for ((rank = 0; rank < world; rank++)); do
  FAKECUDA_GPU=$rank timeout -k 2 "${TIMEOUT:-60}" python3 "$here/rank.py" "$scenario" $rank "$world" "$out" "$steps" \
    >"$out/rank-$rank.log" 2>&1 &
  pids+=($!)
done
[ -n "${HOLD:-}" ] && { echo "${pids[*]}" >"$out/pids"; }
worst=0
for pid in "${pids[@]}"; do wait "$pid"; rc=$?; [ $rc -gt $worst ] && worst=$rc; done
rm -f "$FAKECUDA_FILE"
echo "$scenario world=$world rc=$worst"
