// A CUDA that is not there: enough of the runtime and driver interfaces for NCCL 2.28's own host code to run on a
// machine without a GPU. Apache-2.0, the trainwarden project. Built against NVIDIA's headers, contains none of them.
//
// Real: everything NCCL does on the host (bootstrap, topology, enqueue, groups, proxy threads, profiler interface,
// RAS). Simulated: the GPU. A stream is a thread that takes operations in order; a collective kernel reads NCCL's real
// work structures, writes the profiler stamps and counters as device/common.h (2.28.9) does, meets the other ranks in a
// shared-memory file and then sleeps for the time of the transfer. No data moves, results are not computed.
//
//   FAKECUDA_GPU    which GPU this process has (0..): one process, one GPU
//   FAKECUDA_FILE   the file in which the ranks' kernels meet (made by the test driver, zeroed)
//   FAKECUDA_GBPS   speed of a transfer (default 20), FAKECUDA_LATENCY_US (default 20)
#include <atomic>
#include <condition_variable>
#include <deque>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "device.h"

#define OPEN extern "C" __attribute__((visibility("default")))

// ---------------------------------------------------------------- the meeting place of all ranks' kernels
struct Meeting {
  std::atomic<uint32_t> arrived[16][4096];        // communicator, collective kernel number modulo
  std::atomic<uint64_t> sent[16][16][16], got[16][16][16]; // communicator, from, to
};
static Meeting* meeting() {
  static Meeting* at = [] {
    const char* path = getenv("FAKECUDA_FILE");
    int file = open(path ? path : "/dev/shm/fakecuda", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Meeting))) abort();
    void* p = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return (Meeting*)p;
  }();
  return at;
}

static uint64_t globaltimer() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t(t.tv_sec) * 1000000000u + t.tv_nsec) & ~1023ull; // published samples step by 1024 ns
}
static double setting(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text ? atof(text) : otherwise;
}
static void sleep_ns(uint64_t ns) {
  timespec t = {time_t(ns / 1000000000u), long(ns % 1000000000u)};
  nanosleep(&t, nullptr);
}

// ---------------------------------------------------------------- streams, events, graphs
struct Event {
  std::atomic<uint64_t> asked{0}, done{0};
  uint64_t done_ns = 0;
  struct Graph* captured = nullptr;
};
using Op = std::function<void()>;
struct Graph {
  unsigned long long id;
  bool active = true;
  std::vector<std::function<Op()>> ops; // made when the graph is launched: events take their turn then
  std::vector<std::function<void()>> destructors;
};
static std::mutex& everything = *new std::mutex; // never destroyed: stream threads outlive main
struct Stream;
static std::mutex& list_lock = *new std::mutex;
static std::vector<Stream*>& every_stream = *new std::vector<Stream*>;
static std::condition_variable& changed = *new std::condition_variable;

struct Stream {
  std::deque<Op> queue;
  bool busy = false, stop = false;
  Graph* capture = nullptr;
  std::thread thread;
  Stream() { { std::lock_guard<std::mutex> l(list_lock); every_stream.push_back(this); } thread = std::thread([this] { run(); }); thread.detach(); }
  void run() {
    std::unique_lock<std::mutex> lock(everything);
    while (true) {
      changed.wait(lock, [this] { return stop || !queue.empty(); });
      if (queue.empty()) return;
      Op op = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      op();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};
static Stream* stream_of(cudaStream_t stream) {
  static Stream* plain = new Stream;
  return (uintptr_t)stream <= 2 ? plain : (Stream*)stream;
}
static void put(cudaStream_t stream, Op op) {
  Stream* s = stream_of(stream);
  std::lock_guard<std::mutex> lock(everything);
  if (s->capture) s->capture->ops.push_back([op] { return op; });
  else { s->queue.push_back(std::move(op)); changed.notify_all(); }
}
// CUDA runs host functions on a thread of its own.
static void on_callback_thread(cudaHostFn_t fn, void* arg) {
  static Stream* callbacks = new Stream;
  auto done = std::make_shared<std::atomic<bool>>(false);
  {
    std::lock_guard<std::mutex> lock(everything);
    callbacks->queue.push_back([=] { fn(arg); *done = true; });
    changed.notify_all();
  }
  while (!*done) sleep_ns(5000);
}

// ---------------------------------------------------------------- the kernel
struct Launch { std::vector<char> args; uint64_t gridX; };
static std::mutex numbers;
static std::map<void*, int> comm_number;
static std::map<void*, uint64_t> comm_launches;
static int number_of(void* comm) {
  std::lock_guard<std::mutex> lock(numbers);
  auto found = comm_number.find(comm);
  return found != comm_number.end() ? found->second : (comm_number[comm] = int(comm_number.size()));
}
struct Work { bool p2p; bool profiled; const char* at; };
struct Round { std::vector<Work> works; int next; };

static Round load(const ncclDevKernelArgs* args, int batchIx) { // as loadWorkBatchToShmem
  Round out;
  while (true) {
    ncclDevWorkBatch batch = ((const ncclDevWorkBatch*)(args + 1))[batchIx];
    size_t size = ncclDevWorkSize((ncclDevWorkType)batch.workType);
    for (int bit = 0; bit < 64; bit++) {
      if (!(batch.offsetBitset >> bit & 1)) continue;
      size_t offset = batch.offsetBase + bit * size;
      const char* at = args->workStorageType == ncclDevWorkStorageTypeArgs
                         ? (const char*)args + offset : (const char*)args->workBuf + (offset & args->workMask);
      bool p2p = batch.workType == ncclDevWorkTypeP2p;
      bool on = p2p ? ((ncclDevWorkP2p*)at)->profilerEnabled : ((ncclDevWorkColl*)at)->profilerEnabled;
      out.works.push_back({p2p, on, at});
    }
    if (!batch.nextExtends) { out.next = batch.nextJump ? batchIx + batch.nextJump : -1; return out; }
    batchIx += batch.nextJump;
  }
}
static void stamps(ncclKernelCommAndChannels* comm, int channel, const Round& round, bool start) { // as profiler(action)
  uint64_t& counter = comm->channels[channel].workCounter;
  uint64_t wc = counter + 1;
  ncclDevProfiler& where = (start ? comm->comm.workStarted : comm->comm.workCompleted)[channel];
  for (const Work& work : round.works) {
    if (work.profiled) {
      auto& slot = where.data[wc % MAX_PROFILER_EVENTS_PER_CHANNEL];
      __atomic_store_n(&slot.timestamp, globaltimer(), __ATOMIC_RELEASE);
      __atomic_store_n(&slot.counter, wc, __ATOMIC_RELEASE);
    }
    wc++;
  }
  if (!start) counter += round.works.size();
}
static bool wait_until(ncclKernelCommAndChannels* comm, std::function<bool()> ready) {
  while (!ready()) {
    if (comm->comm.abortFlag && *comm->comm.abortFlag) return false;
    sleep_ns(2000);
  }
  return true;
}
static void kernel(const std::vector<char>& copy) {
  const ncclDevKernelArgs* args = (const ncclDevKernelArgs*)copy.data();
  ncclKernelCommAndChannels* comm = (ncclKernelCommAndChannels*)args->comm;
  int me = comm->comm.rank, ranks = comm->comm.nRanks, number = number_of(comm) % 16;
  std::vector<int> channels, batch;
  for (int c = 0; c < MAXCHANNELS; c++) if (args->channelMask >> c & 1) { batch.push_back(int(channels.size())); channels.push_back(c); }
  while (true) {
    std::vector<Round> rounds;
    bool any = false, p2p = false;
    for (size_t i = 0; i < channels.size(); i++) {
      rounds.push_back(batch[i] < 0 ? Round{{}, -1} : load(args, batch[i]));
      if (batch[i] >= 0) { any = true; p2p |= !rounds[i].works.empty() && rounds[i].works[0].p2p; stamps(comm, channels[i], rounds[i], true); }
    }
    if (!any) return;
    uint64_t bytes = 0;
    bool alive = true;
    if (!p2p) {
      uint64_t k = comm_launches[comm]++;
      auto& arrived = meeting()->arrived[number][k % 4096];
      uint32_t full = uint32_t(ranks) * uint32_t(k / 4096 + 1);
      arrived++;
      alive = wait_until(comm, [&] { return arrived.load() >= full; });
      for (auto& round : rounds) for (auto& work : round.works) {
        auto* coll = (const ncclDevWorkColl*)work.at;
        bytes += (coll->cbd.countLo + coll->cbd.countMid + coll->cbd.countHi) * 4 / 2; // about: the type is not in it
      }
    } else { // once for the pair of peers, whatever number of channels share the bytes
      std::map<const char*, bool> seen;
      std::vector<std::function<bool()>> ready;
      for (auto& round : rounds) for (auto& work : round.works) {
        auto* pair = (const ncclDevWorkP2p*)work.at;
        if (seen[(const char*)pair]) continue;
        seen[(const char*)pair] = true;
        if (pair->nSendChannels && pair->sendRank != me) {
          uint64_t n = ++meeting()->sent[number][me][pair->sendRank];
          ready.push_back([=] { return meeting()->got[number][me][pair->sendRank] >= n; });
          bytes += pair->sendBytes;
        }
        if (pair->nRecvChannels && pair->recvRank != me) {
          uint64_t n = ++meeting()->got[number][pair->recvRank][me];
          ready.push_back([=] { return meeting()->sent[number][pair->recvRank][me] >= n; });
          bytes += pair->recvBytes;
        }
      }
      for (auto& one : ready) alive = alive && wait_until(comm, one);
    }
    if (alive) sleep_ns(uint64_t(setting("FAKECUDA_LATENCY_US", 20) * 1000 + bytes / setting("FAKECUDA_GBPS", 20)));
    for (size_t i = 0; i < channels.size(); i++)
      if (batch[i] >= 0) { stamps(comm, channels[i], rounds[i], false); batch[i] = rounds[i].next; }
    if (!alive) return;
  }
}
static CUresult launch(CUstream stream, void** extra) {
  void* at = nullptr;
  size_t size = 0;
  for (int i = 0; extra && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) at = extra[i + 1];
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t*)extra[i + 1];
  }
  auto copy = std::make_shared<std::vector<char>>((char*)at, (char*)at + size);
  put((cudaStream_t)stream, [copy] { kernel(*copy); });
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- driver entry points that NCCL looks up
static CUresult fc_LaunchKernelEx(const CUlaunchConfig* config, CUfunction, void**, void** extra) { return launch(config->hStream, extra); }
static CUresult fc_LaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream s, void**, void** extra) { return launch(s, extra); }
static CUresult fc_GetErrorString(CUresult, const char** out) { *out = "fake"; return CUDA_SUCCESS; }
static CUresult fc_DeviceGet(CUdevice* out, int n) { *out = n; return CUDA_SUCCESS; }
static CUresult fc_DeviceGetAttribute(int* out, CUdevice_attribute, CUdevice) { *out = 0; return CUDA_SUCCESS; }
static CUresult fc_MemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr p) { if (base) *base = p & ~0xfffull; if (size) *size = 1 << 20; return CUDA_SUCCESS; }
static CUresult fc_CtxGetCurrent(CUcontext* out) { *out = (CUcontext)0x1000; return CUDA_SUCCESS; }
static CUresult fc_CtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
static CUresult fc_CtxGetDevice(CUdevice* out) { *out = 0; return CUDA_SUCCESS; }
static CUresult fc_CtxCreate(CUcontext* out, ...) { *out = (CUcontext)0x1000; return CUDA_SUCCESS; }
static CUresult fc_CtxDestroy(CUcontext) { return CUDA_SUCCESS; }
static CUresult fc_no(...) { return CUDA_ERROR_NOT_SUPPORTED; }

OPEN cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** fn, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  static const std::map<std::string, void*> known = {
    {"cuLaunchKernelEx", (void*)fc_LaunchKernelEx}, {"cuLaunchKernel", (void*)fc_LaunchKernel},
    {"cuGetErrorString", (void*)fc_GetErrorString}, {"cuGetErrorName", (void*)fc_GetErrorString},
    {"cuDeviceGet", (void*)fc_DeviceGet}, {"cuDeviceGetAttribute", (void*)fc_DeviceGetAttribute},
    {"cuMemGetAddressRange", (void*)fc_MemGetAddressRange}, {"cuCtxGetCurrent", (void*)fc_CtxGetCurrent},
    {"cuCtxSetCurrent", (void*)fc_CtxSetCurrent}, {"cuCtxGetDevice", (void*)fc_CtxGetDevice},
    {"cuCtxCreate", (void*)fc_CtxCreate}, {"cuCtxDestroy", (void*)fc_CtxDestroy}};
  auto found = known.find(symbol);
  *fn = found == known.end() ? (void*)fc_no : found->second;
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// ---------------------------------------------------------------- the runtime
OPEN cudaError_t cudaGetDevice(int* out) { *out = 0; return cudaSuccess; }
OPEN cudaError_t cudaSetDevice(int) { return cudaSuccess; }
OPEN cudaError_t cudaGetDeviceCount(int* out) { *out = 1; return cudaSuccess; }
OPEN cudaError_t cudaDriverGetVersion(int* out) { *out = 13000; return cudaSuccess; }
OPEN cudaError_t cudaRuntimeGetVersion(int* out) { *out = 13000; return cudaSuccess; }
OPEN const char* cudaGetErrorString(cudaError_t) { return "fake CUDA error"; }
OPEN cudaError_t cudaGetLastError() { return cudaSuccess; }
OPEN cudaError_t cudaDeviceGetPCIBusId(char* out, int size, int) { snprintf(out, size, "0000:%02X:00.0", 16 + int(setting("FAKECUDA_GPU", 0))); return cudaSuccess; }
OPEN cudaError_t cudaDeviceCanAccessPeer(int* out, int, int) { *out = 0; return cudaSuccess; }
OPEN cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
OPEN cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
OPEN cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr what, int) {
  *out = what == cudaDevAttrComputeCapabilityMajor ? 9 : what == cudaDevAttrMultiProcessorCount ? 132
       : what == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 232448 : 0;
  return cudaSuccess;
}
OPEN cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int) {
  memset(out, 0, sizeof *out); out->major = 9; out->multiProcessorCount = 132; snprintf(out->name, sizeof out->name, "Fake GPU");
  return cudaSuccess;
}
OPEN cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) { memset(out, 0, sizeof *out); return cudaSuccess; }
OPEN cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
OPEN cudaError_t cudaGetFuncBySymbol(cudaFunction_t* out, const void* symbol) { *out = (cudaFunction_t)symbol; return cudaSuccess; }
OPEN cudaError_t cudaMalloc(void** out, size_t size) { *out = calloc(1, (size + 4095) & ~4095ull ? (size + 4095) & ~4095ull : 4096); return cudaSuccess; }
OPEN cudaError_t cudaFree(void* p) { free(p); return cudaSuccess; }
OPEN cudaError_t cudaMallocFromPoolAsync(void** out, size_t size, cudaMemPool_t, cudaStream_t) { return cudaMalloc(out, size); }
OPEN cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) { put(stream, [p] { free(p); }); return cudaSuccess; }
OPEN cudaError_t cudaHostAlloc(void** out, size_t size, unsigned) { return cudaMalloc(out, size); }
OPEN cudaError_t cudaFreeHost(void* p) { free(p); return cudaSuccess; }
OPEN cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
OPEN cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
OPEN cudaError_t cudaHostGetDevicePointer(void** out, void* p, unsigned) { *out = p; return cudaSuccess; }
OPEN cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) { memset(out, 0, sizeof *out); out->type = cudaMemoryTypeDevice; out->devicePointer = (void*)p; return cudaSuccess; }
OPEN cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return cudaErrorNotSupported; }
OPEN cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return cudaErrorNotSupported; }
OPEN cudaError_t cudaIpcCloseMemHandle(void*) { return cudaErrorNotSupported; }
OPEN cudaError_t cudaMemPoolCreate(cudaMemPool_t* out, const cudaMemPoolProps*) { *out = (cudaMemPool_t)0x2000; return cudaSuccess; }
OPEN cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
OPEN cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
OPEN cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) { memcpy(to, from, size); return cudaSuccess; }
OPEN cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  auto copy = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + size);
  put(stream, [=] { memcpy(to, copy->data(), size); });
  return cudaSuccess;
}
OPEN cudaError_t fc_cudaMemcpyBatchAsync() __asm__("cudaMemcpyBatchAsync");
OPEN cudaError_t fc_cudaMemcpyBatchAsync() { return cudaErrorNotSupported; }
OPEN cudaError_t cudaMemset(void* p, int value, size_t size) { memset(p, value, size); return cudaSuccess; }
OPEN cudaError_t cudaMemsetAsync(void* p, int value, size_t size, cudaStream_t stream) { put(stream, [=] { memset(p, value, size); }); return cudaSuccess; }

OPEN cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) { *out = (cudaStream_t) new Stream; return cudaSuccess; }
OPEN cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(everything);
  ((Stream*)stream)->stop = true; // its thread ends when the queue is empty; the object stays
  changed.notify_all();
  return cudaSuccess;
}
OPEN cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Stream* s = stream_of(stream);
  std::unique_lock<std::mutex> lock(everything);
  changed.wait(lock, [s] { return s->queue.empty() && !s->busy; });
  return cudaSuccess;
}
OPEN cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* out) {
  *out = stream_of(stream)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
#undef cudaStreamGetCaptureInfo
OPEN cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
  Graph* g = stream_of(stream)->capture;
  *status = g ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (g && id) *id = g->id;
  if (g && graph) *graph = (cudaGraph_t)g;
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
OPEN cudaError_t fc_cudaStreamUpdateCaptureDependencies() __asm__("cudaStreamUpdateCaptureDependencies");
OPEN cudaError_t fc_cudaStreamUpdateCaptureDependencies() { return cudaSuccess; } // a graph is one line here
OPEN cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
OPEN cudaError_t fc_cudaGraphAddDependencies() __asm__("cudaGraphAddDependencies");
OPEN cudaError_t fc_cudaGraphAddDependencies() { return cudaSuccess; }
static Op record_op(Event* event) {
  uint64_t n = ++event->asked;
  return [event, n] {
    event->done_ns = globaltimer();
    uint64_t before = event->done;
    while (before < n && !event->done.compare_exchange_weak(before, n)) {}
    std::lock_guard<std::mutex> l(everything);
    changed.notify_all();
  };
}
static Op wait_op(Event* event) {
  uint64_t n = event->asked;
  return [event, n] { while (event->done < n) sleep_ns(2000); };
}
OPEN cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*, size_t, cudaEvent_t event) {
  *node = (cudaGraphNode_t)0x3000;
  ((Graph*)graph)->ops.push_back([=] { return record_op((Event*)event); });
  return cudaSuccess;
}
OPEN cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void* arg, cudaHostFn_t fn, unsigned, unsigned) { *out = (cudaUserObject_t) new std::function<void()>([=] { fn(arg); }); return cudaSuccess; }
OPEN cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned, unsigned) { ((Graph*)graph)->destructors.push_back(*(std::function<void()>*)object); return cudaSuccess; }

OPEN cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) { *out = (cudaEvent_t) new Event; return cudaSuccess; }
#undef cudaEventCreate
OPEN cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, 0); }
OPEN cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; } // may still be waited for
OPEN cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Event* e = (Event*)event;
  e->captured = stream_of(stream)->capture;
  if (!e->captured) put(stream, record_op(e));
  return cudaSuccess;
}
OPEN cudaError_t cudaEventQuery(cudaEvent_t event) { Event* e = (Event*)event; return e->done >= e->asked ? cudaSuccess : cudaErrorNotReady; }
OPEN cudaError_t cudaEventSynchronize(cudaEvent_t event) { while (cudaEventQuery(event) != cudaSuccess) sleep_ns(2000); return cudaSuccess; }
OPEN cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  Event* e = (Event*)event;
  Stream* s = stream_of(stream);
  if (e->captured && e->captured->active && !(flags & cudaEventWaitExternal)) { s->capture = e->captured; return cudaSuccess; } // joins the capture
  if (s->capture) s->capture->ops.push_back([e] { return wait_op(e); });
  else put(stream, wait_op(e));
  return cudaSuccess;
}
OPEN cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* arg) { put(stream, [=] { on_callback_thread(fn, arg); }); return cudaSuccess; }

// ---------------------------------------------------------------- for the test driver
OPEN void fc_busy(cudaStream_t stream, uint64_t ns) { put(stream, [ns] { sleep_ns(ns); }); } // a compute kernel
OPEN void* fc_begin_capture(cudaStream_t stream) {
  static std::atomic<unsigned long long> ids{1};
  Graph* graph = new Graph;
  graph->id = ids++;
  stream_of(stream)->capture = graph;
  return graph;
}
OPEN int fc_end_capture(cudaStream_t stream) {
  Graph* graph = stream_of(stream)->capture;
  if (graph) graph->active = false;
  std::lock_guard<std::mutex> lock(list_lock);
  for (Stream* one : every_stream) if (one->capture == graph) one->capture = nullptr; // those that joined leave as well
  return graph ? int(graph->ops.size()) : -1;
}
OPEN void fc_launch_graph(void* graph, cudaStream_t stream) { for (auto& make : ((Graph*)graph)->ops) put(stream, make()); }
OPEN void fc_destroy_graph(void* graph) { for (auto& fn : ((Graph*)graph)->destructors) fn(); }
