#!/bin/bash
# ras.sh OUT: RAS answers of a healthy job and of six ways to hang. Apache-2.0, the trainwarden project.
here=$(cd "$(dirname "$0")" && pwd); out=$1; mkdir -p "$out"
ask() { timeout 60 python3 "$here/../ras_ask.py" "$out" "$1"; }
case_() { # name scenario world seconds-before [signal rank seconds-after]
  local name=$1 scenario=$2 world=$3 wait=$4
  HOLD=1 TIMEOUT=100 "$here/run.sh" "$scenario" "$world" "$out/$name" 6 >/dev/null 2>&1 &
  local job=$!; sleep "$wait"
  mapfile -t ranks < <(for ((r = 0; r < world; r++)); do pgrep -f "bin/python3[.0-9]* .*rank.py $scenario $r $world $out/$name" | head -1; done)
  if [ -n "${5:-}" ]; then kill -"$5" "${ranks[$6]}"; sleep "$7"; fi
  ask "$name"
  if [ -n "${8:-}" ]; then sleep "$8"; ask "$name-later"; fi
  for pid in "${ranks[@]}"; do [ -n "$pid" ] && kill -CONT "$pid" 2>/dev/null; [ -n "$pid" ] && kill -9 "$pid" 2>/dev/null; done; wait $job 2>/dev/null; rm -f /dev/shm/fakecuda-*
}
case_ healthy run 4 12
case_ skip skip 4 20 "" "" "" 3
case_ late_kernel late_kernel 4 20
case_ stopped run 4 12 STOP 2 6 20
case_ killed run 4 12 KILL 2 4 30
case_ stopped_rank0 run 2 10 STOP 1 6
