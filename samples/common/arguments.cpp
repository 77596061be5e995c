#include "samples/common/arguments.h"

#include <zerorun/program.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

namespace samples {

using zerorun::UserError;

void DeepspeedFlags::add_to(CLI::App& app) {
  app.add_option("--deepspeed", deepspeed, "the ds_config.json (or give it with --deepspeed_config)")
      ->expected(0, 1)
      ->type_name("FILE");
  app.add_option("--deepspeed_config", deepspeed_config, "the ds_config.json")->type_name("FILE");
  app.add_option("--local_rank,--local-rank", local_rank, "ignored: LOCAL_RANK has the same value");
}

std::filesystem::path DeepspeedFlags::config_file() const {
  if (!deepspeed.empty() && !deepspeed_config.empty() && deepspeed != deepspeed_config) {
    throw UserError("--deepspeed names '" + deepspeed + "' and --deepspeed_config names '" +
                    deepspeed_config + "': give one of them");
  }
  const std::string& file = deepspeed.empty() ? deepspeed_config : deepspeed;
  if (file.empty()) throw UserError("no config: give --deepspeed FILE, the path of a ds_config.json");
  return file;
}

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.empty() || file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

bool parse_arguments(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    const char* rank = std::getenv("RANK");
    if (!rank || std::string(rank) == "0") std::printf("%s", app.help().c_str());
    return false;
  } catch (const CLI::ParseError& error) {
    throw UserError(std::string(error.what()) + " (--help lists the flags)");
  }
}

}  // namespace samples
