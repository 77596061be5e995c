#include <algorithm>
#include <limits>

#include "config/sections.h"

namespace zerorun::config {
namespace {

constexpr std::string_view offloads[] = {"zero_optimization.offload_optimizer",
                                         "zero_optimization.offload_param"};

void read_stage3_size(const Resolution& resolution, const ZeroConfig& zero, std::string_view name,
                      int64_t& size) {
  const std::string path = "zero_optimization." + std::string(name);
  resolution.read(path, size);
  const Setting* setting = resolution.settings.find(path);
  if (setting && setting->source == Source::file && zero.stage < 3) {
    resolution.note(path,
                    to_json(setting->value) + " has no effect: parameters are partitioned only at stage 3");
  }
}

// Warns if the device of `section` has no effect because the stage is below `least`. `why` is the reason.
void tell_of_stage(const Resolution& resolution, const ZeroConfig& zero, std::string_view section, int least,
                   const std::string& why) {
  const std::string key = std::string(section) + ".device";
  const Settings& settings = resolution.settings;
  if (zero.stage >= least || settings.undecided("zero_optimization.stage") || !settings.given(key)) return;
  const auto device = settings.get<std::string>(key);
  if (!device || device == "none") return;
  resolution.warn(key, to_json(*device) + " has no effect: " + why);
}

void check_offload(const Resolution& resolution, std::string_view section) {
  const std::string device = std::string(section) + ".device";
  const std::string folder = std::string(section) + ".nvme_path";
  const Settings& settings = resolution.settings;
  if (settings.get<std::string>(device) == "nvme" && !settings.get<std::string>(folder)) {
    resolution.report(folder, "a folder beside \"device\": \"nvme\"", "nothing",
                      "write \"nvme_path\": \"/path/of/a/folder\"");
  }
}

// Reads the keys that both offload sections have.
template <typename Offload>
void resolve_offload(const Resolution& resolution, std::string_view section, Offload& offload) {
  const std::string prefix = std::string(section) + ".";
  const auto device = resolution.settings.get<std::string>(prefix + "device");
  if (device == "cpu") offload.device = OffloadDevice::cpu;
  if (device == "nvme") offload.device = OffloadDevice::nvme;
  resolution.read(prefix + "nvme_path", offload.nvme_path);
  resolution.read(prefix + "buffer_count", offload.buffer_count);
}

AioConfig resolve_aio(const Resolution& resolution) {
  AioConfig aio;
  resolution.read("aio.block_size", aio.block_size);
  resolution.read("aio.queue_depth", aio.queue_depth);
  resolution.read("aio.intra_op_parallelism", aio.threads);
  return aio;
}

void check_ratio(const Resolution& resolution, const ZeroConfig& zero) {
  constexpr std::string_view key = "zero_optimization.offload_optimizer.ratio";
  const double ratio = resolution.settings.get<double>(key).value_or(1);
  if (ratio == 1 || zero.stage == 3 || resolution.settings.undecided("zero_optimization.stage")) return;
  resolution.report(key, "1 below stage 3", to_json(ratio), "leave the key out, or set the stage to 3");
}

// What only stage 3 does between ranks (ZeRO++).
void read_zeropp(const Resolution& resolution, ZeroConfig& zero) {
  constexpr std::string_view kNear = "zero_optimization.zero_hpz_partition_size";
  constexpr std::string_view kWeights = "zero_optimization.zero_quantized_weights";
  constexpr std::string_view kGradients = "zero_optimization.zero_quantized_gradients";
  const Settings& settings = resolution.settings;
  const int64_t near = settings.undecided(kNear) ? 1 : settings.get<int64_t>(kNear).value_or(1);
  zero.hpz_partition_size = static_cast<int>(std::clamp<int64_t>(near, 1, std::numeric_limits<int>::max()));
  resolution.read(kWeights, zero.quantized_weights);
  resolution.read(kGradients, zero.quantized_gradients);
  if (settings.undecided("zero_optimization.stage")) return;
  if (settings.get<int64_t>("zero_optimization.stage") != 3) {
    const std::string why = " has no effect: parameters are partitioned only at stage 3";
    if (zero.hpz_partition_size > 1) resolution.note(kNear, std::to_string(near) + why);
    if (zero.quantized_weights) resolution.note(kWeights, "true" + why);
    if (zero.quantized_gradients) resolution.note(kGradients, "true" + why);
    zero.hpz_partition_size = 1;
    zero.quantized_weights = zero.quantized_gradients = false;
  } else if (zero.hpz_partition_size > 1 &&
             settings.get<std::string>("zero_optimization.offload_param.device") == "nvme") {
    resolution.report(kNear, "1 with offload_param to nvme, where parameters are in files for lack of memory",
                      std::to_string(near), "leave the key out, or keep parameters in memory");
  }
}

}  // namespace

PythonConfig resolve_python(const Resolution& resolution) {
  PythonConfig python;
  const std::string section = "zero_optimization.leaf_module";
  const Settings& settings = resolution.settings;
  resolution.read("disable_python_gc", python.disable_gc);
  resolution.read(section + ".classes", python.leaf_classes);
  resolution.read(section + ".names", python.leaf_names);
  resolution.read(section + ".name_suffixes", python.leaf_name_suffixes);
  resolution.read("zero_optimization.stage3_gather_16bit_weights_on_model_save",
                  python.gather_16bit_weights_on_model_save);
  const bool marks =
      !python.leaf_classes.empty() || !python.leaf_names.empty() || !python.leaf_name_suffixes.empty();
  if (!marks || settings.undecided("zero_optimization.stage")) return python;
  const bool partitions = settings.get<int64_t>("zero_optimization.stage") == 3;
  resolution.note(section, partitions ? "marks modules of Python programs; C++ programs have no need of it"
                                      : "has no effect: parameters are partitioned only at stage 3");
  return python;
}

ZeroConfig resolve_zero(const Resolution& resolution) {
  ZeroConfig zero;
  zero.stage = static_cast<int>(resolution.settings.get<int64_t>("zero_optimization.stage").value_or(0));
  resolution.settings.derive("zero_optimization.overlap_comm", zero.stage == 3);
  resolution.read("zero_optimization.overlap_comm", zero.overlap_comm);
  resolution.read("zero_optimization.reduce_bucket_size", zero.reduce_bucket_size);
  resolution.read("zero_optimization.allgather_bucket_size", zero.allgather_bucket_size);
  read_stage3_size(resolution, zero, "stage3_max_live_parameters", zero.max_live_parameters);
  read_stage3_size(resolution, zero, "stage3_max_reuse_distance", zero.max_reuse_distance);
  read_stage3_size(resolution, zero, "stage3_prefetch_bucket_size", zero.prefetch_bucket_size);
  read_stage3_size(resolution, zero, "stage3_param_persistence_threshold", zero.param_persistence_threshold);
  read_stage3_size(resolution, zero, "stage3_model_persistence_threshold", zero.model_persistence_threshold);
  tell_of_stage(resolution, zero, offloads[0], 1, "optimizer states are partitioned from stage 1 on");
  tell_of_stage(resolution, zero, offloads[1], 3, "parameters are partitioned only at stage 3");
  resolve_offload(resolution, offloads[0], zero.offload_optimizer);
  resolution.read("zero_optimization.sub_group_size", zero.offload_optimizer.sub_group_size);
  resolution.read("zero_optimization.offload_optimizer.ratio", zero.offload_optimizer.ratio);
  resolve_offload(resolution, offloads[1], zero.offload_param);
  resolution.read("zero_optimization.offload_param.max_in_cpu", zero.offload_param.max_in_cpu);
  zero.aio = resolve_aio(resolution);
  read_zeropp(resolution, zero);
  check_ratio(resolution, zero);
  for (const std::string_view section : offloads) check_offload(resolution, section);
  return zero;
}

}  // namespace zerorun::config
