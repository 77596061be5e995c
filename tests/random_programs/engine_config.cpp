#include <cmath>
#include <filesystem>
#include <sstream>

#include "tests/random_programs/engines.h"
#include "tests/random_programs/plain_training.h"

namespace zerorun::testing {
namespace {

const char* name_of(Precision precision) {
  return precision == Precision::fp32 ? "fp32" : precision == Precision::bf16 ? "bf16" : "fp16";
}

std::string optimizer_of(const Setup& setup) {
  std::ostringstream text;
  text << R"("optimizer": {"type": ")" << (setup.rule == Rule::adam_w ? "AdamW" : "SGD")
       << R"(", "params": {"lr": )" << kLearningRate << R"(, "weight_decay": )"
       << (setup.decay ? kWeightDecay : 0);
  if (setup.rule == Rule::momentum) text << R"(, "momentum": 0.9)";
  text << "}}";
  return text.str();
}

std::string precision_of(const Setup& setup) {
  std::ostringstream text;
  text << std::fixed;
  if (setup.precision == Precision::bf16) text << R"("bf16": {"enabled": true}, )";
  if (setup.precision == Precision::fp16) {
    text << R"("fp16": {"enabled": true, )";
    if (setup.fixed_scale) {
      text << R"("loss_scale": )" << std::ldexp(1.0, setup.scale_power);
    } else {
      text << R"("initial_scale_power": )" << setup.scale_power << R"(, "loss_scale_window": )"
           << kScaleWindow << R"(, "hysteresis": )" << 1 + setup.scale_power / 4 % 2
           << R"(, "min_loss_scale": 1)";
    }
    text << "}, ";
  }
  text << R"("communication_data_type": ")" << name_of(setup.communication)
       << R"(", "data_types": {"grad_accum_dtype": ")" << name_of(setup.accumulation)
       << R"(", "master_from_fp32": )" << (setup.master_from_fp32 ? "true" : "false") << "}";
  return text.str();
}

std::string zero_of(const Setup& setup) {
  std::ostringstream text;
  text << R"("zero_optimization": {"stage": )" << setup.stage << R"(, "overlap_comm": )"
       << (setup.overlap ? "true" : "false");
  if (setup.stage == 3) {
    text << R"(, "stage3_param_persistence_threshold": )" << setup.persistence
         << R"(, "stage3_max_live_parameters": )" << setup.max_live << R"(, "stage3_prefetch_bucket_size": )"
         << setup.prefetch;
  }
  const std::string nvme =
      R"({"device": "nvme", "nvme_path": ")" + std::filesystem::temp_directory_path().string() + '"';
  if (setup.in_files == InFiles::states || setup.in_files == InFiles::both)
    text << R"(, "offload_optimizer": )" << nvme << "}";
  if (setup.in_files == InFiles::parameters || setup.in_files == InFiles::both)
    text << R"(, "offload_param": )" << nvme << R"(, "max_in_cpu": )" << setup.max_in_cpu << "}";
  text << "}";
  return text.str();
}

}  // namespace

std::string config_of(const Setup& setup) {
  std::ostringstream text;
  text << std::fixed << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": )"
       << setup.micro_steps << R"(, "gradient_clipping": )" << (setup.clips ? kClipping : 0) << ", ";
  if (setup.source == Source::config) text << optimizer_of(setup) << ", ";
  if (setup.recomputes) text << R"("zerorun": {"recompute": {"every": 1}}, )";
  text << precision_of(setup) << ", " << zero_of(setup) << "}";
  return text.str();
}

}  // namespace zerorun::testing
