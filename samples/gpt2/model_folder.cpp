#include "samples/gpt2/model_folder.h"

#include <zerorun/program.h>

#include <cstdio>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "samples/common/files.h"
#include "samples/tokenizer/tokenizer_files.h"

namespace samples {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;
using zerorun::UserError;

class ConfigReader {
 public:
  explicit ConfigReader(const fs::path& folder) : file_(folder / "config.json"), json_(read_json(file_)) {
    if (!json_.is_object()) fail("expected an object");
  }

  // Reads a count. `other` is another name of the key, used if `key` is absent.
  int64_t count(const char* key, const char* other = "") const {
    const json value = json_.value(key, json_.value(other, json()));
    if (!value.is_number_integer() || value < 1 || value > (1 << 20))
      fail(std::string(key) + " is " + value.dump() + ", expected a number from 1 to 1048576");
    return value.get<int64_t>();
  }

  double number(const char* key, double otherwise) const {
    const json value = json_.value(key, json(otherwise));
    if (!value.is_number()) fail(std::string(key) + " is " + value.dump() + ", expected a number");
    return value.get<double>();
  }

  // Fails unless the key has one of `values`. An absent key counts as the first of them.
  void expect(const char* key, std::initializer_list<json> values) const {
    const json found = json_.value(key, *values.begin());
    for (const json& value : values) {
      if (found == value) return;
    }
    fail(std::string(key) + " is " + found.dump() + ", expected " + values.begin()->dump() +
         ": this program computes GPT-2 as it was published");
  }

  [[noreturn]] void fail(const std::string& what) const { throw UserError(file_.string() + ": " + what); }

 private:
  fs::path file_;
  json json_;
};

json config_json(const Gpt2Options& options, const Tokenizer& tokenizer) {
  json config = {{"model_type", "gpt2"},
                 {"architectures", {"GPT2LMHeadModel"}},
                 {"n_layer", options.layers},
                 {"n_embd", options.hidden},
                 {"n_head", options.heads},
                 {"n_positions", options.positions},
                 {"n_ctx", options.positions},
                 {"vocab_size", options.vocab},
                 {"layer_norm_epsilon", options.layer_norm_eps},
                 {"activation_function", "gelu_new"},
                 {"tie_word_embeddings", true}};
  for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) config[key] = 0.0;
  if (const auto end = tokenizer.data().end_token) {
    for (const char* key : {"bos_token_id", "eos_token_id"}) config[key] = *end;
  }
  return config;
}

}  // namespace

Gpt2Options read_model_config(const fs::path& folder) {
  const ConfigReader config(folder);
  config.expect("model_type", {"gpt2"});
  config.expect("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  config.expect("scale_attn_weights", {true});
  config.expect("scale_attn_by_inverse_layer_idx", {false});
  config.expect("add_cross_attention", {false});
  config.expect("tie_word_embeddings", {true});
  Gpt2Options options;
  options.layers = config.count("n_layer", "num_hidden_layers");
  options.hidden = config.count("n_embd", "hidden_size");
  options.heads = config.count("n_head", "num_attention_heads");
  options.positions = config.count("n_positions", "n_ctx");
  options.vocab = config.count("vocab_size");
  options.layer_norm_eps = config.number("layer_norm_epsilon", 1e-5);
  config.expect("n_inner", {nullptr, 4 * options.hidden});
  if (options.hidden % options.heads != 0)
    config.fail("n_head " + std::to_string(options.heads) + " does not divide n_embd " +
                std::to_string(options.hidden));
  return options;
}

void warn_of_dropout(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / "config.json", error)) return;
  const ConfigReader config(folder);
  for (const char* key : {"embd_pdrop", "resid_pdrop", "attn_pdrop"}) {
    const double dropout = config.number(key, 0.1);
    if (dropout == 0) continue;
    std::fprintf(stderr, "warning: %s asks for dropout (%s %g): training goes without\n",
                 (folder / "config.json").c_str(), key, dropout);
    return;
  }
}

void write_model_config(const Gpt2Options& options, const Tokenizer& tokenizer, const fs::path& folder) {
  create_folder(folder);
  write_text(folder / "config.json", config_json(options, tokenizer).dump(1) + "\n");
  if (!tokenizer.is_bytes()) save_tokenizer(tokenizer, folder, options.positions);
}

}  // namespace samples
