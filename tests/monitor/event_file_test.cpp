// Tests of TensorBoard's files: framing, checksums and fields, by an independent reader.
#include "tests/monitor/event_file.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "monitor/tensorboard_writer.h"
#include "tests/support/temporary_folder.h"

namespace zerorun::testing {

TEST_CASE("CRC-32C has the published values") {
  CHECK(crc32c("123456789") == 0xe3069283);  // RFC 3720's check value
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  CHECK(slow_crc32c("123456789") == 0xe3069283);
}

TEST_CASE("A file of TensorBoard has the version and then each event") {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder / "runs/job");
  CHECK(writer.path().filename().string().starts_with("events.out.tfevents."));
  writer.write({.tag = "Train/Samples/train_loss", .value = 2.5, .samples = 8});
  writer.write({.tag = std::string(200, 'a'), .value = -1e-30, .samples = int64_t{1} << 40});
  writer.write({.tag = "é", .value = std::numeric_limits<double>::quiet_NaN(), .samples = 0});
  const auto events = read_events(read_file(writer.path()));
  REQUIRE(events.size() == 4);
  CHECK(events[0].version == "brain.Event:2");
  CHECK(events[0].wall_time > 1.6e9);
  CHECK(events[1].tag == "Train/Samples/train_loss");
  CHECK(events[1].value == 2.5f);
  CHECK(events[1].step == 8);
  CHECK(events[1].wall_time >= events[0].wall_time);
  CHECK(events[2].tag == std::string(200, 'a'));
  CHECK(events[2].value == -1e-30f);
  CHECK(events[2].step == int64_t{1} << 40);
  CHECK(events[3].tag == "é");
  CHECK(std::isnan(events[3].value));
}

TEST_CASE("Each engine has a file of its own") {
  const TemporaryFolder folder;
  const TensorBoardWriter first(folder / "job");
  const TensorBoardWriter second(folder / "job");
  CHECK(first.path() != second.path());
}

}  // namespace zerorun::testing
