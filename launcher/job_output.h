// Where the output of one host's ranks goes: to the launcher's own console, or over a connection to a
// launcher on another host. Used by the Job on the main thread.
#pragma once

#include <poll.h>

#include <string>
#include <string_view>
#include <vector>

#include "launcher/line_multiplexer.h"

namespace zerorun::launcher {

class JobOutput {
 public:
  virtual ~JobOutput() = default;

  // `rank`: the rank's number on this host.
  virtual void feed(int rank, Stream stream, std::string_view bytes) = 0;
  /// The rank writes no more to this stream.
  virtual void close(int rank, Stream stream) = 0;
  /// Prints a line of the launcher's own.
  virtual void notice(const std::string& message) = 0;

  /// False while so many bytes are pending that no more should be read from the ranks.
  virtual bool takes_more(Stream stream) const = 0;
  virtual bool is_flushed() const = 0;
  virtual void append_poll_entries(std::vector<pollfd>& entries) const = 0;
  virtual void write_some() = 0;
  /// True once nobody reads the output any more (`zerorun ... | head`).
  virtual bool is_gone() const = 0;
};

}  // namespace zerorun::launcher
