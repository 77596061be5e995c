// A temporary folder in which a test runs the program zerorun as users do.
#pragma once

#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "tests/support/temporary_folder.h"

namespace zerorun::testing {

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

class CommandFolder {
 public:
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }

  /// Runs `zerorun ARGUMENTS` in the folder; a shell parses the arguments.
  Outcome run(const std::string& arguments) const {
    const std::string command = "cd '" + (folder_ / "").string() +
                                "' && '" ZERORUN_BINARY_DIR "/bin/zerorun' " + arguments + " >.out 2>.err";
    const int status = std::system(command.c_str());
    INFO(command);
    REQUIRE(WIFEXITED(status));
    return {WEXITSTATUS(status), read_file(folder_ / ".out"), read_file(folder_ / ".err")};
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace zerorun::testing
