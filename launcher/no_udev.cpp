// Stands in for libudev where hwloc is linked statically, for the Python wheel: hwloc asks udev about disks,
// the launcher asks hwloc about processors only, and not every machine has libudev. Without a udev, hwloc
// knows less of disks.
extern "C" {
void* udev_new() {
  return nullptr;
}
void* udev_unref(void* udev) {
  return udev;
}
void* udev_device_new_from_subsystem_sysname(void*, const char*, const char*) {
  return nullptr;
}
const char* udev_device_get_property_value(void*, const char*) {
  return nullptr;
}
void* udev_device_unref(void* device) {
  return device;
}
}
