#!/bin/bash
# Slurm HealthCheckProgram: a node that is at fault is drained; jobs on it go on. Slurm reads no exit code of it.
# shellcheck source=fault.sh
. "$(dirname "$0")/fault.sh" 2>/dev/null || exit 0
node=$(node_name)
why=$(node_fault "$node") || exit 0
drain "$node" "$why"
exit 0
