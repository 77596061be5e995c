// The launcher's stdout and stderr: the ranks' output goes through a LineMultiplexer into two OutputQueues.
// Owned by launch(), used by the Job on the main thread.
#pragma once

#include <poll.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job_output.h"
#include "launcher/line_multiplexer.h"
#include "launcher/output_queue.h"

namespace zerorun::launcher {

class Console : public JobOutput {
 public:
  /// `labels`: the names of the sources of output, numbered from 0. Once several sources have printed, each
  /// line begins with its source's name. `quiet`: information() prints nothing.
  explicit Console(const std::vector<std::string>& labels, bool quiet = false);

  /// The sources of what is printed from now on.
  void set_sources(const std::vector<std::string>& labels);

  void feed(int source, Stream stream, std::string_view bytes) override;
  void close(int source, Stream stream) override;
  /// Prints "zerorun: `message`" on stderr, also if the console is quiet. Control characters, which another
  /// host may have sent, become ?.
  void notice(const std::string& message) override;
  /// As notice(), but prints nothing if the console is quiet.
  void information(const std::string& message);

  bool takes_more(Stream stream) const override;
  bool is_flushed() const override;
  void append_poll_entries(std::vector<pollfd>& entries) const override;
  void write_some() override;
  bool is_gone() const override;

 private:
  OutputQueue& queue(Stream stream) { return queues_[static_cast<int>(stream)]; }
  void take_and_write();

  Display display_;
  LineMultiplexer lines_;
  std::array<OutputQueue, 2> queues_;
  bool quiet_;
  bool loss_printed_ = false;
};

}  // namespace zerorun::launcher
