// A fake libnccl.so.2 that knows its version only.
extern "C" int ncclGetVersion(int* version) {
  *version = 23007;
  return 0;
}
