#include "monitor/run_log_writer.h"

#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "monitor/csv_writer.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;

AppendFile open_steps(const fs::path& folder) try {
  make_writable_folder(folder);
  AppendFile steps(folder / kStepsFile);
  steps.cut_to_whole_lines();
  return steps;
} catch (const std::exception& error) {
  throw UserError("zerorun.run_log.path \"" + folder.string() +
                  "\": expected a folder that rank 0 can write to, but it " + error.what() +
                  ": name another folder, or leave the key empty for no log");
}

}  // namespace

RunLogWriter::RunLogWriter(const fs::path& path) : folder_(path), steps_(open_steps(path)) {}

void RunLogWriter::write(const RunRecord& run) {
  const fs::path file = folder_ / kRunFile;
  const fs::path temporary = file.string() + ".tmp" + std::to_string(::getpid());
  std::error_code error;
  fs::remove(temporary, error);
  AppendFile(temporary).append(to_json(run));
  fs::rename(temporary, file, error);
  if (error) throw UserError("cannot write " + file.string() + ": " + error.message());
}

void RunLogWriter::write(const StepRecord& step) {
  append(to_line(step));
}

void RunLogWriter::write(const RunEvent& event) {
  append(to_line(event));
}

void append_event(const fs::path& folder, const RunEvent& event) {
  std::error_code error;
  if (!fs::is_regular_file(folder / kStepsFile, error)) return;
  AppendFile steps(folder / kStepsFile);
  steps.cut_to_whole_lines();
  steps.append(to_line(event));
}

void RunLogWriter::append(std::string_view line) try {
  steps_.append(line);
} catch (const std::exception& error) {
  if (std::exchange(failed_, true)) return;
  log_warning(std::string("zerorun.run_log: ") + error.what() +
              ": training goes on, and steps are missing in this log (this warning comes once)");
}

}  // namespace zerorun
