// The part checkpoint of bench_gpu: a training is saved twice and loaded twice.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "benchmarks/figures.h"
#include "benchmarks/gpu/bench.h"
#include "benchmarks/gpu/training.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;

const std::string kPart = "checkpoint";

// A new folder, which the destructor removes with all that is in it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const fs::path& parent) {
    std::string pattern = (parent / "bench_gpu_XXXXXX").string();
    if (!::mkdtemp(pattern.data()))
      throw UserError("cannot make a folder in " + parent.string() +
                      ": give --folder one that may be written");
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

double bytes_of_files(const fs::path& folder) {
  double bytes = 0;
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (file.is_regular_file()) bytes += static_cast<double>(file.file_size());
  }
  return bytes;
}

void add_time(Bench& bench, const std::string& subject, double seconds, double bytes) {
  bench.report.add({kPart, subject, "whole", "s", seconds});
  bench.report.add({kPart, subject, "rate", "GB/s", bytes / kGiga / seconds});
}

// Adds the loss of the next step: the same after a save and after loading what it has saved.
void add_next_loss(Bench& bench, const std::string& subject, EngineTraining& training) {
  training.step();
  bench.report.add({kPart, subject, "next loss", "", training.loss()});
}

// Returns the bytes that were written.
double save(Bench& bench, const std::string& subject, EngineTraining& training, const fs::path& folder) {
  bench.clock.wait();
  const auto begin = std::chrono::steady_clock::now();
  const fs::path saved = training.engine().save_checkpoint(folder, "", {.keep_last = 1});
  const double call = milliseconds_since(begin) / 1e3;
  training.engine().wait_for_checkpoint();
  const double whole = milliseconds_since(begin) / 1e3;
  const double bytes = bytes_of_files(saved);
  add_time(bench, subject, whole, bytes);
  bench.report.add({kPart, subject, "call", "s", call});
  add_next_loss(bench, subject, training);
  return bytes;
}

void load(Bench& bench, const std::string& subject, EngineTraining& training, const fs::path& folder,
          double bytes) {
  const double seconds = bench.clock.time_on_host([&] { training.engine().load_checkpoint(folder); }) / 1e3;
  add_time(bench, subject, seconds, bytes);
  add_next_loss(bench, subject, training);
}

}  // namespace

void measure_checkpoint(Bench& bench) {
  const ModelSize size = size_of("124M", bench.options.tiny);
  const fs::path parent =
      bench.options.folder.empty() ? fs::temp_directory_path() : fs::path(bench.options.folder);
  const ScratchFolder folder(parent);
  EngineTraining training(size, {{"stage", 3}}, bench.communicator);
  for (int step = 0; step < 3; ++step) training.step();  // the third step repeats the second
  bench.report.add_note(kPart, "GPT-2 of 124 M parameters at stage 3, in " + parent.string());
  bench.report.add_note(kPart,
                        "whole: until no crash can lose the files; call: until save_checkpoint() returns and "
                        "training may go on");
  save(bench, "first save", training, folder.path());
  const double bytes = save(bench, "second save", training, folder.path());
  load(bench, "first load", training, folder.path(), bytes);
  load(bench, "second load", training, folder.path(), bytes);
}

}  // namespace zerorun
