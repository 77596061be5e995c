// A fake libnccl.so.2 that knows its version only.
extern "C" int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
