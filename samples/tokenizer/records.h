// The texts of one field in a file of JSON, or of JSON lines, of any size: contexts of a question-answering
// file, say.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace zerorun {

/// Calls `use` for each string that any object of the file has under the key `field`, in the file's order.
/// Throws UserError naming the file and the document (of JSON lines: the line) for what is no JSON, a value
/// that is no string, or a field that occurs nowhere.
void for_each_text(const std::filesystem::path& file, const std::string& field,
                   const std::function<void(std::string_view)>& use);

}  // namespace zerorun
