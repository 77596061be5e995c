// Reads the texts of one field in a file of JSON or JSON lines, of any size: for example the contexts of a
// question-answering file.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace samples {

/// Calls `use` for each string that any object of the file has under the key `field`, in the file's order.
/// Throws UserError if a document is not JSON or a value of the field is not a string; the message names the
/// file and the document (in JSON lines: the line). Also throws UserError if no object has the field.
void for_each_text(const std::filesystem::path& file, const std::string& field,
                   const std::function<void(std::string_view)>& use);

}  // namespace samples
