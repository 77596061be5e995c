// Runs random training programs with the engine and compares them with plain LibTorch.
//
//   random_programs [--first SEED] [--programs COUNT] [--seconds SECONDS]  programs of consecutive seeds
//     [--with TEXT]                                                        those with a feature of this name
//   random_programs --seed SEED                                            the program of one seed
//   random_programs --program FILE                                         a program from a file
//
// A program that fails is shrunk and printed in the format that --program reads. Exit code: 0 if all programs
// passed, 1 if any failed or none ran, 2 if the arguments are wrong.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "tests/random_programs/isolated.h"
#include "tests/random_programs/shrink.h"

namespace zerorun::testing {
namespace {

using Clock = std::chrono::steady_clock;

// The largest number of programs that run in one set of child processes. Larger sets save time, because
// starting children takes a moment. Smaller sets end sooner, which matters because the time limit and --stop
// are checked only between sets.
constexpr size_t kMostTogether = 200;

struct Options {
  uint64_t first = 1;
  uint64_t programs = std::numeric_limits<uint64_t>::max();
  std::chrono::seconds seconds = std::chrono::hours(24 * 365);
  std::optional<std::string> file;
  std::string feature;  // a part of its name
  std::chrono::milliseconds deadline = std::chrono::seconds(10);
  bool shrinks = true;
  bool stops = false;  // after the first failure
};

constexpr const char* kUsage =
    "expected: random_programs [--seed SEED | --program FILE | [--first SEED] [--programs COUNT] [--seconds "
    "SECONDS]]\n"
    "                          [--with TEXT] [--deadline MILLISECONDS] [--no-shrink] [--stop]\n";

uint64_t number(const std::string& text) {
  size_t used = 0;
  const unsigned long long value = std::stoull(text, &used);
  if (used != text.size()) throw std::invalid_argument(text);
  return value;
}

Options read_options(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--no-shrink" || name == "--stop") {
      (name == "--stop" ? options.stops : options.shrinks) = name == "--stop";
      continue;
    }
    if (++i == count) throw std::invalid_argument(name);
    const std::string value = arguments[i];
    if (name == "--seed") {
      options.first = number(value);
      options.programs = 1;
    } else if (name == "--first") {
      options.first = number(value);
    } else if (name == "--programs") {
      options.programs = number(value);
    } else if (name == "--seconds") {
      options.seconds = std::chrono::seconds(number(value));
    } else if (name == "--deadline") {
      options.deadline = std::chrono::milliseconds(number(value));
    } else if (name == "--with") {
      options.feature = value;
    } else if (name == "--program") {
      options.file = value;
    } else {
      throw std::invalid_argument(name);
    }
  }
  return options;
}

void report(const std::string& what, const Program& program, std::string failure, const Options& options) {
  std::cout << "FAILED: " << what << "\n" << failure << "\n";
  if (options.shrinks) {
    // The deadline is short, because in many failures ranks wait until it has passed.
    constexpr std::chrono::milliseconds kShortDeadline(3000);
    const Program shorter = shrink(
        program,
        [&](const Program& candidate) {
          return !run_isolated({&candidate, 1}, kShortDeadline).failure.empty();
        },
        std::chrono::seconds(120));
    const Outcome again = run_isolated({&shorter, 1}, options.deadline);
    std::cout << "# shrunk; run again with --program FILE\n" << to_text(shorter);
    std::cout << (again.failure.empty() ? "(it does not always fail)\n" : again.failure) << "\n";
  } else {
    std::cout << to_text(program);
  }
  std::cout << std::flush;
}

class Session {
 public:
  explicit Session(const Options& options) : options_(options), end_(Clock::now() + options.seconds) {}

  int run() {
    if (options_.file) {
      std::ifstream stream(*options_.file);
      if (!stream) throw std::invalid_argument(*options_.file);
      std::ostringstream text;
      text << stream.rdbuf();
      const Program program = within_contract(parse_program(text.str()));
      run({&program, 1}, {&*options_.file, 1});
      return finish();
    }
    uint64_t seed = options_.first;
    const uint64_t end = options_.programs > std::numeric_limits<uint64_t>::max() - seed
                             ? std::numeric_limits<uint64_t>::max()
                             : seed + options_.programs;
    while (seed < end && goes_on()) {
      std::vector<Program> programs;
      std::vector<std::string> names;
      for (; seed < end && programs.size() < kMostTogether; ++seed) {
        Program program = generate(seed);
        if (!is_wanted(program)) continue;
        if (!programs.empty() && !run_alike(programs.front(), program)) break;
        programs.push_back(std::move(program));
        names.push_back("seed " + std::to_string(seed));
      }
      run(programs, names);
    }
    return finish();
  }

 private:
  bool goes_on() const { return Clock::now() < end_ && !(options_.stops && failed_ > 0); }

  bool is_wanted(const Program& program) const {
    if (options_.feature.empty()) return true;
    FeatureCounts features;
    count_features(program, features);
    return std::ranges::any_of(features, [&](const auto& feature) {
      return feature.first.find(options_.feature) != std::string::npos;
    });
  }

  void run(std::span<const Program> programs, std::span<const std::string> names) {
    while (!programs.empty() && goes_on()) {
      const Outcome outcome = run_isolated(programs, options_.deadline);
      size_t done = outcome.passed;
      passed_ += static_cast<int64_t>(done);
      if (!outcome.failure.empty()) {
        ++failed_;
        report(names[done], programs[done], outcome.failure, options_);
        ++done;
      }
      for (const Program& program : programs.first(done)) count_features(program, features_);
      programs = programs.subspan(done);
      names = names.subspan(done);
    }
  }

  int finish() const {
    for (const auto& [feature, count] : features_) std::cout << count << "\t" << feature << "\n";
    std::cout << passed_ << " passed, " << failed_ << " failed\n";
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

  const Options& options_;
  Clock::time_point end_;
  FeatureCounts features_;
  int64_t passed_ = 0;
  int64_t failed_ = 0;
};

}  // namespace
}  // namespace zerorun::testing

int main(int count, char** arguments) {
  using namespace zerorun::testing;
  try {
    const Options options = read_options(count, arguments);
    return Session(options).run();
  } catch (const std::invalid_argument& error) {
    std::cerr << "random_programs: " << error.what() << "\n" << kUsage;
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "random_programs: " << error.what() << "\n";
    return 2;
  }
}
