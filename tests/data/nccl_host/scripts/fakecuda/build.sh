#!/bin/bash
# build.sh NCCL_SOURCE CUDA_INCLUDE OUT: NCCL's host code (2.28.9) with fakecuda below it; g++, about two minutes on
# two cores. CUDA_INCLUDE is the folder of cuda_runtime.h (the nvidia-cuda-runtime and -crt wheels have it; no toolkit
# is needed). NVIDIA's sources are read, never copied into ours. Apache-2.0, the trainwarden project.
#
# Then: export FAKECUDA_BUILD=OUT NCCL_PROFILER_PLUGIN=/path/of/plugin.so; ./run.sh ddp 2 /tmp/out 12
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); S=$(cd "$1/src" && pwd); CU=$(cd "$2" && pwd); mkdir -p "$3"; O=$(cd "$3" && pwd)
mkdir -p "$O/inc" "$O/gen" "$O/obj"
sed -e 's/\${nccl:Major}/2/g;s/\${nccl:Minor}/28/g;s/\${nccl:Patch}/9/g;s/\${nccl:Suffix}//g;s/\${nccl:Version}/22809/g' "$S/nccl.h.in" >"$O/inc/nccl.h"
python3 "$S/device/generate.py" "$O/gen" ""
flags="-O1 -g1 -fPIC -fvisibility=hidden -std=c++17 -w -DCUDA_MAJOR=13 -DCUDA_MINOR=0 -D_GNU_SOURCE -DPROFAPI
 -I$O/inc -I$S -I$S/include -I$S/include/plugin -I$S/device -I$CU -I$CU/cccl"
cd "$S"
ls *.cc graph/*.cc misc/*.cc transport/*.cc register/*.cc plugin/*.cc plugin/*/*.cc nccl_device/*.cc scheduler/*.cc gin/*.cc ras/*.cc |
  grep -vE '^(enhcompat.cc|ras/client.cc)$' | sed 's/\.cc$//' |
  xargs -P "$(nproc)" -I{} bash -c 'mkdir -p "$(dirname "'"$O"'/obj/{}")"; g++ '"$(echo $flags)"' -c {}.cc -o '"$O"'/obj/{}.o'
g++ $flags -c "$O/gen/host_table.cc" -o "$O/obj/host_table.o"
g++ $flags -fvisibility=default -c "$here/fakecuda.cc" -o "$O/fakecuda.o"
objects=$(find "$O/obj" -name '*.o')
g++ -shared -o "$O/raw.so" $objects -ldl -lpthread -lrt
# Whatever is missing and not CUDA's is device code (kernels, GPU-initiated networking): never called here.
nm -D --undefined-only "$O/raw.so" | awk '{print $2}' | grep -E '^_Z' | grep -vE '@|_ZTH' |
  awk '{print "void s"NR"(void) __asm__(\""$1"\"); void s"NR"(void) { }"}' >"$O/stubs.c"
echo 'const int ncclSymkKernelCount = 0; void* ncclSymkKernelList[1]; int ncclSymkKernelRequirements[1];' >>"$O/stubs.c"
gcc -w -fPIC -c "$O/stubs.c" -o "$O/stubs.o"
g++ -shared -o "$O/libnccl.so.2" $objects "$O/fakecuda.o" "$O/stubs.o" -ldl -lpthread -lrt
gcc -O1 -shared -fPIC -o "$O/libnvidia-ml.so.1" "$here/fakenvml.c"
rm "$O/raw.so"; ls -l "$O/libnccl.so.2"
