#include "monitor/tensorboard_writer.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>

#include "base/printable.h"
#include "base/protobuf.h"
#include "monitor/csv_writer.h"

namespace zerorun {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return std::rotr(crc, 15) + 0xa282ead8;
}

template <typename T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// A message of an event, which begins with the time.
ProtobufMessage event_of_now() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  ProtobufMessage event;
  event.add_double(1, now.count());
  return event;
}

std::string record(const std::string& data) {
  const std::string length = bytes_of(static_cast<uint64_t>(data.size()));
  return length + bytes_of(masked_crc(length)) + data + bytes_of(masked_crc(data));
}

std::filesystem::path new_file(const std::filesystem::path& folder) {
  make_writable_folder(folder);
  static std::atomic<int> count = 0;  // engines of one process
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  return folder / ("events.out.tfevents." + std::to_string(seconds) + '.' + host + '.' +
                   std::to_string(::getpid()) + '.' + std::to_string(count++));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder) : file_(new_file(folder)) {
  ProtobufMessage first = event_of_now();
  first.add_bytes(3, "brain.Event:2");
  file_.append(record(first.bytes()));
}

void TensorBoardWriter::write(const MonitorEvent& event) {
  ProtobufMessage value;
  value.add_bytes(1, printable(event.tag));
  value.add_float(2, static_cast<float>(event.value));
  ProtobufMessage summary;
  summary.add(1, value);
  ProtobufMessage message = event_of_now();
  message.add_signed(2, event.samples);
  message.add(5, summary);
  file_.append(record(message.bytes()));
}

}  // namespace zerorun
