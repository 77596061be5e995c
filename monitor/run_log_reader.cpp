#include "monitor/run_log_reader.h"

#include <charconv>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace zerorun {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = R"({"step":)";
constexpr std::string_view kStart = R"(,"start":true,)";
constexpr std::string_view kEvent = R"(,"event":)";

std::string why_no_log(const fs::path& folder) {
  return folder.string() + ": expected a run log, a folder with " + kRunFile + " and " + kStepsFile +
         " that zerorun.run_log.path names in ds_config.json";
}

RunRecord read_run(const fs::path& folder) {
  const fs::path file = folder / kRunFile;
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw UserError(why_no_log(folder) + ", but there is no such folder");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw UserError(why_no_log(folder) + ", but " + kRunFile + " cannot be read");
  std::ostringstream text;
  text << stream.rdbuf();
  try {
    return run_of_json(text.str());
  } catch (const UserError& problem) {
    throw UserError(file.string() + ": no description of a run: " + problem.what());
  }
}

template <typename Map>
std::vector<int64_t> keys_of(const Map& map) {
  std::vector<int64_t> keys;
  for (const auto& [key, place] : map) keys.push_back(key);
  return keys;
}

}  // namespace

RunLogReader::RunLogReader(const fs::path& folder)
    : folder_(folder), run_(read_run(folder)), file_(folder / kStepsFile, std::ios::binary) {
  if (!file_) throw UserError(why_no_log(folder) + ", but " + kStepsFile + " cannot be read");
  std::string line;
  std::streamoff begin = 0;
  for (int64_t number = 1; std::getline(file_, line); ++number) {
    const Place place{begin, number};
    begin += static_cast<std::streamoff>(line.size()) + 1;
    if (file_.eof()) {
      is_cut_off_ = true;
      break;
    }
    if (line.empty()) continue;
    int64_t step = 0;
    const std::string_view text = line;
    const char* number_begin = text.data() + kBegin.size();
    const auto [end, error] = text.starts_with(kBegin) && text.ends_with('}')
                                  ? std::from_chars(number_begin, text.data() + text.size(), step)
                                  : std::from_chars_result{text.data(), std::errc::invalid_argument};
    // A piece of a line that the next engine has ended.
    if (error != std::errc()) fail(number, "it is no line of a run log");
    const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
    if (rest.starts_with(kEvent)) {
      events_.push_back({place});
    } else {
      if (!events_.empty() && !events_.back().next_step) events_.back().next_step = step;
      (rest.starts_with(kStart) ? starts_ : steps_).insert_or_assign(step, place);
    }
  }
  file_.clear();
}

std::vector<int64_t> RunLogReader::steps() const {
  return keys_of(steps_);
}

std::vector<int64_t> RunLogReader::starts() const {
  return keys_of(starts_);
}

StepRecord RunLogReader::step(int64_t step) {
  return read(steps_.at(step));
}

StepRecord RunLogReader::start(int64_t step) {
  return read(starts_.at(step));
}

std::vector<RunEvent> RunLogReader::events() {
  std::vector<RunEvent> events;
  for (const auto& [place, next_step] : events_) {
    try {
      events.push_back(event_of_json(line_at(place)));
    } catch (const UserError& problem) {
      fail(place.line, problem.what());
    }
    RunEvent& event = events.back();
    if (event.kind == RunEventKind::began && next_step) event.step = *next_step - 1;
  }
  return events;
}

std::string RunLogReader::line_at(const Place& place) {
  std::string line;
  file_.clear();
  file_.seekg(place.begin);
  if (!std::getline(file_, line)) fail(place.line, "it cannot be read");
  return line;
}

StepRecord RunLogReader::read(const Place& place) {
  const std::string line = line_at(place);
  try {
    return step_of_json(line);
  } catch (const UserError& problem) {
    fail(place.line, problem.what());
  }
}

void RunLogReader::fail(int64_t line, const std::string& why) const {
  throw UserError((folder_ / kStepsFile).string() + ", line " + std::to_string(line) + " is damaged: " + why +
                  ": delete that line to compare the others");
}

}  // namespace zerorun
