#include "base/program.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/error.h"

namespace zerorun {
namespace {

// LibTorch appends its C++ backtrace to what(): the lines before it are the message.
std::string without_backtrace(std::string message) {
  auto backtrace = message.find("\nException raised from");
  if (backtrace != std::string::npos) message.resize(backtrace);
  return message;
}

void tell(const std::string& rank, const std::string& message) {
  std::fflush(stdout);
  std::string prefix = rank.empty() ? "" : "rank " + rank + ": ";
  std::fprintf(stderr, "error: %s%s\n", prefix.c_str(), message.c_str());
  std::fflush(stderr);
}

// An error that all ranks have alike. Rank 0 needs no name for it.
int tell_once(const std::string& rank, const char* message, int exit_code) {
  if (!rank.empty() && rank != "0") std::this_thread::sleep_for(std::chrono::seconds(2));
  tell(rank == "0" ? "" : rank, message);
  return exit_code;
}

}  // namespace

int run_program(const std::function<int()>& body) {
  const char* rank_variable = std::getenv("RANK");
  const std::string rank = rank_variable ? rank_variable : "";
  try {
    return body();
  } catch (const UserError& error) {
    return tell_once(rank, error.what(), 2);
  } catch (const TrainingError& error) {
    return tell_once(rank, error.what(), 1);
  } catch (const std::exception& error) {
    tell(rank, without_backtrace(error.what()));
    return 1;
  }
}

}  // namespace zerorun
