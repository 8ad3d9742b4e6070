/* libnvidia-ml.so.1 for fakecuda: FAKECUDA_GPUS devices, nothing else. Apache-2.0, the trainwarden project. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static int count(void) { const char *t = getenv("FAKECUDA_GPUS"); return t ? atoi(t) : 4; }
int nvmlInit_v2(void) { return 0; }
int nvmlInit(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)count(); return 0; }
int nvmlDeviceGetHandleByIndex(unsigned i, void **d) { *d = (void *)(uintptr_t)(i + 1); return 0; }
int nvmlDeviceGetHandleByPciBusId(const char *bus, void **d) {
    unsigned domain = 0, number = 0;
    sscanf(bus, "%x:%x", &domain, &number);
    *d = (void *)(uintptr_t)(number - 16 + 1);
    return 0;
}
int nvmlDeviceGetIndex(void *d, unsigned *i) { *i = (unsigned)((uintptr_t)d - 1); return 0; }
const char *nvmlErrorString(int r) { (void)r; return "fake"; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *a, int *b) { (void)d; *a = 9; *b = 0; return 0; }
int nvmlDeviceGetP2PStatus(void *a, void *b, int i, int *s) { (void)a; (void)b; (void)i; *s = 0; return 0; }
int nvmlDeviceGetNvLinkState(void *d, unsigned l, int *s) { (void)d; (void)l; (void)s; return 3; }
int nvmlDeviceGetNvLinkCapability(void *d, unsigned l, int c, unsigned *r) { (void)d; (void)l; (void)c; (void)r; return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo(void *d, unsigned l, void *p) { (void)d; (void)l; (void)p; return 3; }
int nvmlDeviceGetFieldValues(void *d, int n, void *v) { (void)d; (void)n; (void)v; return 3; }
int nvmlDeviceGetGpuFabricInfoV(void *d, void *i) { (void)d; (void)i; return 3; }
int nvmlDeviceGetPlatformInfo(void *d, void *i) { (void)d; (void)i; return 3; }
