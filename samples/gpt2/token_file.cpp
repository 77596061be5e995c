#include "samples/gpt2/token_file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>
#include <zerorun/program.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "samples/common/files.h"
#include "samples/tokenizer/records.h"
#include "samples/tokenizer/text_reader.h"

namespace samples {
namespace fs = std::filesystem;

using zerorun::UserError;

// The start of a token file. The tokens follow, `width` bytes each. If row_length is not 0, the rows' lengths
// follow the tokens: for each row the number of its tokens without padding, as uint32.
struct TokenFile::Header {
  char magic[8] = {'Z', 'R', 'T', 'O', 'K', 'E', 'N', '1'};
  int64_t tokens = 0;
  int64_t text_bytes = 0;
  int64_t row_length = 0;
  int64_t width = 0;
};

namespace {

struct FileState {
  std::uintmax_t size;
  fs::file_time_type time;
  bool operator==(const FileState&) const = default;
};

std::vector<FileState> states_of(const TokenSource& source) {
  std::vector<FileState> states;
  for (const fs::path& file : source.files) {
    std::error_code error;
    states.push_back({fs::file_size(file, error), fs::last_write_time(file, error)});
  }
  return states;
}

// Returns a hash of the files' bytes and of everything else that their tokens depend on, as 32 hexadecimal
// digits.
std::string hash_of(const TokenSource& source, const Tokenizer& tokenizer) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  for (const fs::path& file : source.files) {
    TextReader reader(file, /*any_bytes=*/true);
    for (std::string_view part = reader.next(); !part.empty(); part = reader.next())
      XXH3_128bits_update(&state, part.data(), part.size());
    const int64_t size = reader.size();
    XXH3_128bits_update(&state, &size, sizeof(size));
  }
  const uint64_t others[] = {tokenizer.hash(), static_cast<uint64_t>(source.row_length), source.field.size()};
  XXH3_128bits_update(&state, others, sizeof(others));
  XXH3_128bits_update(&state, source.field.data(), source.field.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  char digits[33];
  std::snprintf(digits, sizeof(digits), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return digits;
}

class Writer {
 public:
  Writer(const fs::path& file, int64_t width)
      : stream_(file, std::ios::binary | std::ios::trunc), width_(width) {}

  void skip(int64_t bytes) { stream_.seekp(bytes); }
  void write(const void* bytes, size_t size) {
    stream_.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  }

  void write_tokens(const std::vector<int32_t>& tokens) {
    buffer_.resize(tokens.size() * static_cast<size_t>(width_));
    for (size_t index = 0; index < tokens.size(); ++index)  // little endian
      std::memcpy(buffer_.data() + index * static_cast<size_t>(width_), &tokens[index],
                  static_cast<size_t>(width_));
    write(buffer_.data(), buffer_.size());
    count_ += static_cast<int64_t>(tokens.size());
  }
  int64_t count() const { return count_; }

  // Throws UserError if anything could not be written.
  void finish(const fs::path& file) {
    stream_.close();
    if (!stream_) throw UserError(file.string() + ": cannot be written: " + std::strerror(errno));
  }

 private:
  std::ofstream stream_;
  int64_t width_;
  int64_t count_ = 0;
  std::vector<char> buffer_;
};

// Writes all files as one stream of tokens. Returns the number of bytes of text.
int64_t write_stream(const TokenSource& source, const Tokenizer& tokenizer, Writer& writer) {
  Encoder encoder(tokenizer);
  std::vector<int32_t> tokens;
  int64_t bytes = 0;
  for (size_t index = 0; index < source.files.size(); ++index) {
    TextReader reader(source.files[index], tokenizer.is_bytes());
    encoder.start();
    for (std::string_view part = reader.next(); !part.empty(); part = reader.next()) {
      tokens.clear();
      encoder.encode(part, tokens);
      writer.write_tokens(tokens);
      bytes += static_cast<int64_t>(part.size());
    }
    const auto end = tokenizer.data().end_token;
    if (end && index + 1 < source.files.size()) writer.write_tokens({*end});
  }
  return bytes;
}

// Writes one row per text. Leaves out texts of fewer than two tokens, which have nothing to predict. Returns
// the number of bytes of text.
int64_t write_rows(const TokenSource& source, const Tokenizer& tokenizer, Writer& writer,
                   std::vector<uint32_t>& lengths) {
  Encoder encoder(tokenizer);
  std::vector<int32_t> tokens;
  int64_t bytes = 0;
  for (const fs::path& file : source.files) {
    for_each_text(file, source.field, [&](std::string_view text) {
      tokens.clear();
      encoder.start();
      encoder.encode(text, tokens);
      if (tokens.size() < 2) return;
      lengths.push_back(
          static_cast<uint32_t>(std::min(static_cast<int64_t>(tokens.size()), source.row_length)));
      tokens.resize(static_cast<size_t>(source.row_length), tokenizer.data().end_token.value_or(0));
      writer.write_tokens(tokens);
      bytes += static_cast<int64_t>(text.size());
    });
  }
  return bytes;
}

}  // namespace

fs::path make_token_file(const TokenSource& source, const Tokenizer& tokenizer, const fs::path& folder) {
  const std::vector<FileState> states = states_of(source);
  const fs::path file =
      folder / (source.files.front().stem().string() + "-" + hash_of(source, tokenizer) + ".tokens");
  std::error_code error;
  if (fs::exists(file, error)) return file;
  create_folder(folder);
  const fs::path partial = file.string() + "." + std::to_string(::getpid()) + ".partial";
  try {
    TokenFile::Header header;
    header.width = tokenizer.size() <= 256 ? 1 : tokenizer.size() <= 65536 ? 2 : 4;
    Writer writer(partial, header.width);
    writer.write(&header, sizeof(header));
    std::vector<uint32_t> lengths;
    header.text_bytes = source.field.empty() ? write_stream(source, tokenizer, writer)
                                             : write_rows(source, tokenizer, writer, lengths);
    header.row_length = source.field.empty() ? 0 : source.row_length;
    header.tokens = writer.count();
    writer.write(lengths.data(), lengths.size() * sizeof(lengths[0]));
    writer.skip(0);
    writer.write(&header, sizeof(header));
    writer.finish(partial);
    if (states_of(source) != states)
      throw UserError("a file of --data has changed while it was read: " + source.files.front().string());
    fs::rename(partial, file);
  } catch (...) {
    fs::remove(partial, error);
    throw;
  }
  return file;
}

TokenFile::TokenFile(const fs::path& file) : name_(file.string()) {
  // Without O_NONBLOCK, open() would wait until somebody opens a pipe for writing.
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) throw UserError(name_ + ": cannot be opened: " + std::strerror(errno));
  bytes_ = ::lseek(descriptor, 0, SEEK_END);
  void* memory = bytes_ < static_cast<int64_t>(sizeof(Header))
                     ? MAP_FAILED
                     : ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  header_ = memory == MAP_FAILED ? nullptr : static_cast<const Header*>(memory);
  const Header expected;
  const bool is_complete =
      header_ && std::memcmp(header_->magic, expected.magic, sizeof(expected.magic)) == 0 &&
      (header_->width == 1 || header_->width == 2 || header_->width == 4) && header_->tokens >= 0 &&
      header_->tokens <= bytes_ && header_->row_length >= 0 &&
      bytes_ == static_cast<int64_t>(sizeof(Header)) + header_->tokens * header_->width +
                    (header_->row_length > 0 ? header_->tokens / header_->row_length * 4 : 0);
  if (is_complete) return;
  if (header_) ::munmap(const_cast<Header*>(header_), static_cast<size_t>(bytes_));
  throw UserError(name_ + ": is not a complete file of tokens: delete it, and it will be created again");
}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : name_(std::move(other.name_)), header_(std::exchange(other.header_, nullptr)), bytes_(other.bytes_) {}

TokenFile::~TokenFile() {
  if (header_) ::munmap(const_cast<Header*>(header_), static_cast<size_t>(bytes_));
}

int64_t TokenFile::size() const {
  return header_->tokens;
}
int64_t TokenFile::text_bytes() const {
  return header_->text_bytes;
}
int64_t TokenFile::row_length() const {
  return header_->row_length;
}

void TokenFile::copy(int64_t offset, int64_t count, int64_t* to) const {
  ZR_CHECK(0 <= offset && 0 <= count && offset + count <= size(), "tokens within the file");
  const auto* first = reinterpret_cast<const char*>(header_ + 1) + offset * header_->width;
  for (int64_t index = 0; index < count; ++index) {
    uint32_t token = 0;
    std::memcpy(&token, first + index * header_->width, static_cast<size_t>(header_->width));
    to[index] = token;
  }
}

int64_t TokenFile::row_tokens(int64_t row) const {
  uint32_t tokens = 0;
  const auto* lengths = reinterpret_cast<const char*>(header_ + 1) + size() * header_->width;
  std::memcpy(&tokens, lengths + row * 4, sizeof(tokens));
  return tokens;
}

}  // namespace samples
