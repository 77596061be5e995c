// An agent's end of its connection to the launcher. It passes the launcher's orders to the Job (JobControl),
// and the ranks' output and failures to the launcher. Owned by the agent, used on the main thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hosts/frame_socket.h"
#include "launcher/hosts/node_order.h"
#include "launcher/job_control.h"
#include "launcher/job_output.h"

namespace zerorun::launcher {

class AgentLink : public JobControl {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AgentLink(FrameSocket socket) : socket_(std::move(socket)) {}

  void append_poll_entries(std::vector<pollfd>& entries) const override {
    socket_.append_poll_entry(entries);
  }
  void service() override;
  std::optional<std::chrono::milliseconds> take_order_to_end() override;
  bool must_end() const override { return order_to_end_.has_value(); }
  void report(const RankFailure& failure) override { send(FrameType::failure, encode(failure)); }
  void report_stopped(int rank, const std::string& description) override {
    send(FrameType::stopped, encode(StoppedRank{rank, description}));
  }

  void send(FrameType type, std::string_view payload = {}) { socket_.send(type, payload); }
  /// Waits for a frame of this type, before the ranks run. Throws UserError if the launcher refuses the
  /// agent, and Error if the launcher is lost or ends the job, or if the frame does not arrive by `deadline`.
  /// `purpose` names the awaited message in these errors.
  std::string wait_for(FrameType type, Clock::time_point deadline, const std::string& purpose);
  /// Call this several times a second while this process is busy and no ranks run yet: otherwise the launcher
  /// counts it as lost. Frames that arrive stay for wait_for().
  void keep_alive();
  /// Sends `result`, the last frame, and waits until the launcher closes the connection, or says that it has
  /// no more use for this host.
  void finish(const NodeResult& result);
  /// Sends `result`, the last frame, and waits until the launcher says whether the job is started again, or
  /// is lost.
  void wait_for_word(const NodeResult& result);

  /// The launcher has said that the job is started again, so that this launcher is to join again.
  bool is_called_again() const { return word_ == FrameType::again; }
  bool is_lost() const { return lost_; }
  /// Sends output of a rank. Its bytes count as pending until the launcher confirms them.
  void send_output(const RankOutput& output);
  bool takes_output() const;
  size_t unsent() const { return socket_.unsent(); }

 private:
  void handle(const Frame& frame);
  void beat();
  void find_out_whether_lost();

  FrameSocket socket_;
  bool lost_ = false;
  std::optional<std::chrono::milliseconds> order_to_end_;
  std::optional<FrameType> word_;  // again, finished
  size_t untaken_ = 0;             // bytes of output that the launcher has not taken yet
  Clock::time_point last_beat_ = Clock::now();
  Clock::time_point last_service_ = Clock::now();
};

/// Sends the ranks' output to the launcher. `first_rank`: the first rank of this host.
class LinkOutput : public JobOutput {
 public:
  LinkOutput(AgentLink& link, int first_rank) : link_(link), first_rank_(first_rank) {}

  void feed(int rank, Stream stream, std::string_view bytes) override {
    link_.send_output({first_rank_ + rank, stream, bytes});
  }
  void close(int rank, Stream stream) override {
    link_.send(FrameType::output_end, encode(RankOutput{first_rank_ + rank, stream, {}}));
  }
  void notice(const std::string& message) override { link_.send(FrameType::notice, message); }
  bool takes_more(Stream) const override { return link_.takes_output(); }
  bool is_flushed() const override { return link_.is_lost() || link_.unsent() == 0; }
  void append_poll_entries(std::vector<pollfd>&) const override {}  // AgentLink appends the socket
  void write_some() override {}
  bool is_gone() const override { return false; }

 private:
  AgentLink& link_;
  int first_rank_;
};

}  // namespace zerorun::launcher
