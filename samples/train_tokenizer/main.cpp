// train_tokenizer: learns a byte-level BPE from text files and writes it in Hugging Face's layout.
//
//   train_tokenizer --data FILE... --vocab 2000 --out FOLDER
#include <zerorun/program.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "samples/common/arguments.h"
#include "samples/common/text.h"
#include "samples/tokenizer/text_reader.h"
#include "samples/tokenizer/tokenizer_files.h"
#include "samples/tokenizer/trainer.h"

namespace samples {
namespace {

int run(int argc, char** argv) {
  std::vector<std::string> data;
  int64_t vocab = 2000;
  int64_t max_length = 1024;
  std::string out;
  CLI::App app("Learns a byte-level BPE from text files.", "train_tokenizer");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", data, "UTF-8 text to learn from")->type_name("FILE...")->required();
  app.add_option("--vocab", vocab, "number of tokens: <|endoftext|>, the 256 bytes, and the learned ones");
  app.add_option("--max-length", max_length, "maximum length of a sequence, in tokens (model_max_length)");
  app.add_option("--out", out, "folder for tokenizer.json, vocab.json and merges.txt")
      ->type_name("FOLDER")
      ->required();
  if (!parse_arguments(app, argc, argv)) return 0;

  const auto start = std::chrono::steady_clock::now();
  TokenizerTrainer trainer;
  int64_t bytes = 0;
  for (const std::string& file : data) {
    TextReader reader(file);
    for (std::string_view part = reader.next(); !part.empty(); part = reader.next()) {
      trainer.add(part);
      bytes += static_cast<int64_t>(part.size());
    }
  }
  const Tokenizer tokenizer = trainer.train(vocab);
  save_tokenizer(tokenizer, out, max_length);
  std::printf("%s: %s tokens, learned from %s bytes in %.1f s\n", out.c_str(),
              with_commas(tokenizer.size()).c_str(), with_commas(bytes).c_str(),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return 0;
}

}  // namespace
}  // namespace samples

int main(int argc, char** argv) {
  return zerorun::run_program([&] { return samples::run(argc, argv); });
}
