#include "launcher/hosts/argparse_words.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/error.h"

namespace zerorun::launcher {
namespace {

bool is_negative_number(const std::string& word) {
  return word.size() > 1 && std::ranges::all_of(word.begin() + 1, word.end(), [](unsigned char c) {
           return std::isdigit(c) != 0 || c == '.';
         });
}

// argparse takes a word with a space, or a negative number, as a value.
bool is_option(const std::string& word) {
  return word.size() > 1 && word.front() == '-' && word.find(' ') == std::string::npos &&
         !is_negative_number(word);
}

bool means_not_given(const CLI::Option& option, const std::string& value) {
  return value == "-1" && (option.check_name("--num_gpus") || option.check_name("--num_nodes") ||
                           option.check_name("--node_rank"));
}

}  // namespace

std::vector<std::string> as_argparse_reads(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t i = 0; i < words.size() && words[i].starts_with("-") && words[i] != "--";) {
    const size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr || option->get_items_expected_max() == 0) {
      if (option != nullptr && equals + 1 == words[i].size())
        throw UserError(name + " takes no value: write it without =");
      ++i;
      continue;
    }
    const auto word = words.begin() + static_cast<ptrdiff_t>(i);
    if (equals != std::string::npos) {
      const std::string value = words[i].substr(equals + 1);
      *word = name;
      words.insert(word + 1, value);
    } else if (i + 1 < words.size() && is_option(words[i + 1]) && name != "--launcher_args") {
      throw UserError(name + ": expected a value, found '" + words[i + 1] +
                      "'; if that is the value, write " + name + "=" + words[i + 1]);
    }
    if (i + 1 < words.size() && means_not_given(*option, words[i + 1])) {
      const auto first = words.begin() + static_cast<ptrdiff_t>(i);
      words.erase(first, first + 2);
    } else {
      i += 2;
    }
  }
  return words;
}

void refuse_empty_texts(const CLI::App& app) {
  for (const char* name :
       {"--hostfile", "--include", "--exclude", "--master_addr", "--bind_core_list", "--rdzv_endpoint",
        "--launcher", "--venv_script", "--enable_each_rank_log", "--log_dir", "--redirects", "--tee",
        "--local_ranks_filter", "--local_addr", "--timeline"}) {
    const CLI::Option* option = app.get_option(name);
    if (option->count() > 0 && option->results().back().empty()) {
      const bool filter = name == std::string_view("--include") || name == std::string_view("--exclude");
      throw UserError(std::string(name) + ": expected a " +
                      (name == std::string_view("--hostfile")         ? "file"
                       : name == std::string_view("--master_addr")    ? "host name or address"
                       : name == std::string_view("--bind_core_list") ? "list such as 0-3,5"
                       : filter                                       ? "filter such as localhost:0,2"
                                                                      : "value") +
                      ", found an empty text");
    }
  }
}

}  // namespace zerorun::launcher
