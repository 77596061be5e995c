// The launcher's stdout and stderr: the ranks' output goes through a LineMultiplexer into two OutputQueues.
// Owned by launch(), used by the Job on the main thread.
#pragma once

#include <poll.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/line_multiplexer.h"
#include "launcher/output_queue.h"

namespace zerorun {

class Console {
 public:
  /// For `ranks` ranks on this host. In the methods, ranks are numbered from 0; what is printed names them
  /// from `first_rank`.
  Console(int ranks, int first_rank);

  void feed(int rank, Stream stream, std::string_view bytes);
  void close(int rank, Stream stream);
  /// Prints "zerorun: `message`" on stderr.
  void notice(const std::string& message);

  /// False while so many bytes are pending that the launcher should not read more from the ranks.
  bool takes_more(Stream stream) const;
  bool is_flushed() const;
  void append_poll_entries(std::vector<pollfd>& entries) const;
  void write_some();
  /// True once stdout has no reader any more (`zerorun ... | head`).
  bool stdout_is_gone() const;

 private:
  OutputQueue& queue(Stream stream) { return queues_[static_cast<int>(stream)]; }
  void take_and_write();

  Display display_;
  LineMultiplexer lines_;
  std::array<OutputQueue, 2> queues_;
  bool loss_printed_ = false;
};

}  // namespace zerorun
