#include "samples/tokenizer/records.h"

#include <zerorun/program.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>
#include <nlohmann/json.hpp>

namespace samples {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;
using zerorun::UserError;

// Receives the parser's events and keeps at most one text in memory.
class FieldReader : public json::json_sax_t {
 public:
  FieldReader(const std::string& field, const std::function<void(std::string_view)>& use)
      : field_(&field), use_(&use) {}

  bool null() override { return other("null"); }
  bool boolean(bool) override { return other("a boolean"); }
  bool number_integer(number_integer_t) override { return other("a number"); }
  bool number_unsigned(number_unsigned_t) override { return other("a number"); }
  bool number_float(number_float_t, const string_t&) override { return other("a number"); }
  bool binary(binary_t&) override { return other("binary"); }
  bool start_object(std::size_t) override { return other("an object"); }
  bool start_array(std::size_t) override { return other("an array"); }
  bool end_object() override { return true; }
  bool end_array() override { return true; }
  bool key(string_t& name) override {
    is_field_ = name == *field_;
    return true;
  }
  bool string(string_t& text) override {
    if (is_field_) {
      (*use_)(text);
      ++found_;
    }
    is_field_ = false;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    wrong_ = "byte " + std::to_string(position) + ": expected JSON: " + error.what();
    return false;
  }

  int64_t found() const { return found_; }
  const std::string& wrong() const { return wrong_; }

 private:
  bool other(const char* kind) {
    if (is_field_) wrong_ = "\"" + *field_ + "\" is " + kind + ", expected a string";
    return !is_field_;
  }

  const std::string* field_;
  const std::function<void(std::string_view)>* use_;
  bool is_field_ = false;  // the next value belongs to field_
  int64_t found_ = 0;
  std::string wrong_;
};

}  // namespace

void for_each_text(const fs::path& file, const std::string& field,
                   const std::function<void(std::string_view)>& use) {
  std::error_code error;
  if (fs::is_directory(file, error)) throw UserError(file.string() + ": is a folder; name the files in it");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw UserError(file.string() + ": cannot be opened: " + std::strerror(errno));
  FieldReader reader(field, use);
  int64_t documents = 0;
  // A file of JSON lines is a sequence of documents.
  while ((stream >> std::ws).good()) {
    ++documents;
    if (json::sax_parse(stream, &reader, json::input_format_t::json, /*strict=*/false)) continue;
    throw UserError(file.string() + ", document " + std::to_string(documents) + ": " + reader.wrong());
  }
  if (documents == 0) throw UserError(file.string() + ": the file is empty; expected JSON");
  if (reader.found() == 0)
    throw UserError(file.string() + ": no object has the field \"" + field +
                    "\" (--field): name one that the file has");
}

}  // namespace samples
