// Recognises files of other programs that are given in place of a ds_config.json. Pure; any thread.
#pragma once

#include <string_view>

namespace zerorun::config {

struct ForeignFile {
  std::string_view name;    // such as "a file of `accelerate config`"
  std::string_view remedy;  // says which of its keys names the ds_config.json
};

/// Whose file `text` is; null if it is none of the known ones (accelerate, axolotl, transformers).
const ForeignFile* recognise_foreign_file(std::string_view text);

}  // namespace zerorun::config
