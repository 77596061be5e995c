// Converts programs to text, with one operation on a line, and back.
#include <array>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "tests/random_programs/program.h"

namespace zerorun::testing {
namespace {

constexpr std::array kKindNames = {"forward",     "failing_forward", "backward",  "failing_backward",
                                   "step",        "evaluate",        "read",      "write",
                                   "scope",       "rank_write",      "raw_read",  "raw_write",
                                   "raw_refused", "no_sync",         "attempt",   "fail",
                                   "synchronize", "remake",          "companion", "fork",
                                   "drop",        "set_gradient",    "clip",      "gradient",
                                   "flip",        "boundary",        "offload",   "group",
                                   "state",       "optimizer_file",  "save",      "load",
                                   "resume",      "evaluator"};
constexpr std::array kSourceNames = {"config", "program", "enable_zero"};
constexpr std::array kPlaceNames = {"threads",          "sharing_threads",
                                    "hosts_of_threads", "shared_memory_processes",
                                    "gloo_processes",   "hosts_of_processes"};
constexpr std::array kPrecisionNames = {"fp32", "bf16", "fp16"};
constexpr std::array kRuleNames = {"sgd", "momentum", "adam_w"};
constexpr std::array kInFilesNames = {"nothing", "states", "parameters", "both"};
constexpr std::array kLayoutNames = {"plain", "transposed", "channels_last", "with_gaps"};

template <typename Names>
int index_of(const Names& names, const std::string& name) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<int>(i);
  }
  throw std::runtime_error("no such name: " + name);
}

std::string join(const std::vector<int>& values, char separator) {
  std::ostringstream text;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text << separator;
    text << values[i];
  }
  return text.str();
}

std::vector<int> split(const std::string& text, char separator) {
  std::vector<int> values;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, separator);) values.push_back(std::stoi(item));
  return values;
}

// Visits the fields of a record with their names, to write or to read them. Enumerators are written as names.
template <typename Visitor>
void visit(Setup& setup, Visitor&& visitor) {
  visitor.name("place", setup.place, kPlaceNames);
  visitor.number("ranks", setup.ranks);
  visitor.number("groups", setup.groups);
  visitor.number("recomputes", setup.recomputes);
  visitor.number("stage", setup.stage);
  visitor.name("precision", setup.precision, kPrecisionNames);
  visitor.name("communication", setup.communication, kPrecisionNames);
  visitor.name("accumulation", setup.accumulation, kPrecisionNames);
  visitor.number("master_from_fp32", setup.master_from_fp32);
  visitor.name("source", setup.source, kSourceNames);
  visitor.number("marks", setup.marks);
  visitor.name("rule", setup.rule, kRuleNames);
  visitor.number("decay", setup.decay);
  visitor.number("micro_steps", setup.micro_steps);
  visitor.number("clips", setup.clips);
  visitor.number("overlap", setup.overlap);
  visitor.number("bucket_numel", setup.bucket_numel);
  visitor.number("max_live", setup.max_live);
  visitor.number("prefetch", setup.prefetch);
  visitor.number("persistence", setup.persistence);
  visitor.number("scale_power", setup.scale_power);
  visitor.number("fixed_scale", setup.fixed_scale);
  visitor.number("has_schedule", setup.has_schedule);
  visitor.number("schedule_throws_at", setup.schedule_throws_at);
  visitor.name("in_files", setup.in_files, kInFilesNames);
  visitor.number("max_in_cpu", setup.max_in_cpu);
}

template <typename Visitor>
void visit(Parameter& parameter, Visitor&& visitor) {
  visitor.list("sizes", parameter.sizes, 'x');
  visitor.name("layout", parameter.layout, kLayoutNames);
  visitor.number("frozen", parameter.frozen);
  visitor.number("tied", parameter.tied);
  visitor.number("group", parameter.group);
}

template <typename Visitor>
void visit(Operation& operation, Visitor&& visitor) {
  visitor.number("slot", operation.slot);
  visitor.number("data", operation.data);
  visitor.number("rank", operation.rank);
  visitor.list("parameters", operation.parameters, ',');
  visitor.number("branch", operation.branch);
  visitor.number("poison", operation.poison);
  visitor.number("retain", operation.retain);
  visitor.number("how", operation.how);
}

// Writes " name=value" for each field.
struct Writer {
  std::string text = {};

  template <typename Number>
  void number(const char* name, Number& value) {
    text += std::string(" ") + name + "=" + std::to_string(static_cast<int>(value));
  }
  template <typename Enum, typename Names>
  void name(const char* name, Enum& value, const Names& names) {
    text += std::string(" ") + name + "=" + names[static_cast<size_t>(value)];
  }
  void list(const char* name, std::vector<int>& values, char separator) {
    text += std::string(" ") + name + "=" + join(values, separator);
  }
};

// Sets the fields that the text contains and leaves the other fields unchanged.
struct Reader {
  std::map<std::string, std::string> fields;

  std::string* find(const char* name) {
    const auto field = fields.find(name);
    return field == fields.end() ? nullptr : &field->second;
  }
  template <typename Number>
  void number(const char* name, Number& value) {
    if (const std::string* text = find(name)) value = static_cast<Number>(std::stoi(*text));
  }
  template <typename Enum, typename Names>
  void name(const char* name, Enum& value, const Names& names) {
    if (const std::string* text = find(name)) value = static_cast<Enum>(index_of(names, *text));
  }
  void list(const char* name, std::vector<int>& values, char separator) {
    if (const std::string* text = find(name)) values = split(*text, separator);
  }
};

// The text of the fields that differ from those of a default record.
template <typename Record>
std::string differences(Record record) {
  Writer own;
  Writer fresh;
  Record defaults;
  visit(record, own);
  visit(defaults, fresh);
  std::istringstream own_fields(own.text);
  std::istringstream fresh_fields(fresh.text);
  std::string text;
  for (std::string field, other; own_fields >> field && fresh_fields >> other;) {
    if (field != other) text += " " + field;
  }
  return text;
}

void write(const std::vector<Operation>& operations, const std::string& indent, std::string& text) {
  for (const Operation& operation : operations) {
    text += indent + to_text(operation) + (is_block(operation.kind) ? " {\n" : "\n");
    if (!is_block(operation.kind)) continue;
    write(operation.body, indent + "  ", text);
    text += indent + "}\n";
  }
}

template <typename Record>
Record read_fields(std::istringstream& line) {
  Reader reader;
  for (std::string field; line >> field && field != "{";) {
    const size_t equals = field.find('=');
    if (equals == std::string::npos) throw std::runtime_error("expected name=value, found " + field);
    reader.fields[field.substr(0, equals)] = field.substr(equals + 1);
  }
  Record record;
  visit(record, reader);
  return record;
}

void read_line(const std::string& text, Program& program, std::vector<std::vector<Operation>*>& open) {
  std::istringstream line(text);
  std::string word;
  if (!(line >> word) || word[0] == '#') return;
  if (word == "setup") {
    program.setup = read_fields<Setup>(line);
  } else if (word == "parameter") {
    program.parameters.push_back(read_fields<Parameter>(line));
  } else if (word == "}") {
    if (open.size() == 1) throw std::runtime_error("a } without its {");
    open.pop_back();
  } else {
    auto operation = read_fields<Operation>(line);
    operation.kind = static_cast<Kind>(index_of(kKindNames, word));
    open.back()->push_back(std::move(operation));
    if (is_block(open.back()->back().kind)) open.push_back(&open.back()->back().body);
  }
}

}  // namespace

int64_t Parameter::numel() const {
  int64_t product = 1;
  for (int size : sizes) product *= size;
  return product;
}

bool is_block(Kind kind) {
  return kind == Kind::scope || kind == Kind::no_sync || kind == Kind::attempt || kind == Kind::remake;
}

const char* name_of(Kind kind) {
  return kKindNames[static_cast<size_t>(kind)];
}

std::vector<int> uses_of(const Operation& operation, int rank) {
  std::vector<int> uses = operation.parameters;
  if (operation.branch && uses.size() > 1) {
    uses.erase(uses.begin() + rank % static_cast<int>(uses.size()));
  }
  return uses;
}

std::string to_text(const Operation& operation) {
  return name_of(operation.kind) + differences(operation);
}

std::string to_text(const Program& program) {
  std::string text = "setup" + differences(program.setup) + "\n";
  for (const Parameter& parameter : program.parameters) text += "parameter" + differences(parameter) + "\n";
  write(program.operations, "", text);
  return text;
}

Program parse_program(std::string_view text) {
  Program program;
  std::vector<std::vector<Operation>*> open = {&program.operations};
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    try {
      read_line(line, program, open);
    } catch (const std::exception& error) {
      throw std::runtime_error("line " + std::to_string(number) + ": " + error.what());
    }
  }
  return program;
}

}  // namespace zerorun::testing
