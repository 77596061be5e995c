#include "launcher/rank_logs.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "base/error.h"

namespace zerorun::launcher {
namespace {

constexpr int kBothStreams = 3;

int number(std::string_view text, int highest, const std::string& option, const std::string& whole) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= highest)
    return value;
  throw UserError(option + " " + whole + ": '" + std::string(text) + "' is not a number from 0 to " +
                  std::to_string(highest));
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text + ",");  // without the last comma, getline would drop an empty last part
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

constexpr int kHighestRank = 1 << 20;

// A folder of this run alone, in which nobody else can make files.
void make_own_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  if (::mkdir(path.c_str(), 0755) == 0) return;
  throw UserError("cannot make the folder of log files " + path + ": " +
                  (error ? error.message() : std::strerror(errno)));
}

}  // namespace

int StreamChoice::of(int local_rank) const {
  const auto found = std::ranges::find(some, local_rank, &std::pair<int, int>::first);
  return found == some.end() ? all : found->second;
}

StreamChoice parse_stream_choice(const std::string& text, const std::string& option) {
  StreamChoice choice;
  if (text.find(':') == std::string::npos) {
    choice.all = number(text, kBothStreams, option, text);
    return choice;
  }
  for (const std::string& part : split(text)) {
    const size_t colon = std::min(part.find(':'), part.size());
    const std::string streams = colon < part.size() ? part.substr(colon + 1) : "";
    choice.some.emplace_back(number(part.substr(0, colon), kHighestRank, option, text),
                             number(streams, kBothStreams, option, text));
  }
  return choice;
}

std::vector<int> parse_rank_list(const std::string& text, const std::string& option) {
  std::vector<int> ranks;
  for (const std::string& part : split(text)) ranks.push_back(number(part, kHighestRank, option, text));
  return ranks;
}

RankLogs::RankLogs(const LogOptions& options, int first_rank, int ranks, std::optional<int> node)
    : sinks_(ranks) {
  std::string run_folder = options.folder + "/" + options.run;
  if (node) run_folder += "_node" + std::to_string(*node);
  if (!options.folder.empty() && options.attempt == 0) make_own_folder(run_folder);
  const std::string attempt = std::to_string(options.attempt);
  for (int rank = 0; rank < ranks; ++rank) {
    const bool shown = !options.printed || std::ranges::count(*options.printed, rank) > 0;
    for (Sink& sink : sinks_[rank]) sink.printed = shown;
    if (!options.one_file_folder.empty()) {
      const int file = open(options.one_file_folder + "/" + options.run +
                            (options.attempt > 0 ? "_attempt" + attempt : "") + "_rank" +
                            std::to_string(first_rank + rank) + ".log");
      for (Sink& sink : sinks_[rank]) sink = {file, false};
    }
    if (options.folder.empty()) continue;
    const std::string folder = run_folder + "/attempt_" + attempt + "/" + std::to_string(rank);
    for (const Stream stream : kStreams) {
      const int bit = 1 << static_cast<int>(stream);
      const bool redirected = (options.redirects.of(rank) & bit) != 0;
      if (!redirected && (options.tee.of(rank) & bit) == 0) continue;
      Sink& sink = sinks_[rank][static_cast<int>(stream)];
      sink.file = open(folder + (stream == Stream::out ? "/stdout.log" : "/stderr.log"));
      sink.printed = sink.printed && !redirected;
    }
  }
}

int RankLogs::open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  // In a folder that others share, somebody may have made a link or a pipe of this name: no file is opened
  // that is there already.
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0666));
  if (!fd.is_open()) {
    throw UserError("cannot write the log file " + path + ": " +
                    (error ? error.message() : std::strerror(errno)));
  }
  files_.push_back({path, std::move(fd)});
  return static_cast<int>(files_.size()) - 1;
}

bool RankLogs::feed(int local_rank, Stream stream, std::string_view bytes, std::string& failure) {
  if (sinks_.empty()) return true;
  const Sink& sink = sinks_[local_rank][static_cast<int>(stream)];
  if (sink.file < 0) return sink.printed;
  File& file = files_[sink.file];
  while (!bytes.empty() && file.fd.is_open()) {
    const ssize_t size = ::write(file.fd.get(), bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      failure = "cannot write the log file " + file.path + " (" + std::strerror(errno) +
                "): from here on its lines are printed";
      file.fd.reset();
      break;
    }
    bytes.remove_prefix(size);
  }
  return sink.printed || !file.fd.is_open();
}

}  // namespace zerorun::launcher
