#include "engine/saving/checkpoint_publisher.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/error.h"
#include "zero/slice_store.h"

namespace zerorun {
namespace {

using std::chrono::milliseconds;

// A text that is not a failure starts with one of these characters; a failure, with a Failure::Kind.
constexpr char kReady = 'r';
constexpr char kPart = 'p';
constexpr char kPartAndFolder = 'f';  // the rank also has a folder to publish; its next saving number follows

// A network file system may show a new folder to other hosts some seconds late.
constexpr milliseconds kLongestDelay(5000);
constexpr milliseconds kPoll(10);

// Throws UserError if the files of all ranks together have too few or too many elements of a parameter: then
// the ranks have saved different states.
void check_complete(const checkpoint::Manifest& manifest) {
  std::map<std::string, int64_t> elements;
  for (const auto& [name, file] : manifest.files) {
    for (const checkpoint::StateRange& range : file.ranges) {
      if (range.state == kValue) elements[range.parameter] += range.numel;
    }
  }
  for (const auto& [name, parameter] : manifest.parameters) {
    int64_t numel = 1;
    for (const int64_t size : parameter.shape) numel *= size;
    const int64_t expected = parameter.excluded ? 0 : numel;
    if (elements[name] == expected) continue;
    throw UserError("the ranks' files have " + std::to_string(elements[name]) + " elements of " + name +
                    ", expected " + std::to_string(expected));
  }
}

}  // namespace

CheckpointPublisher::CheckpointPublisher(checkpoint::FileSystem& files, const SavedTag& tag,
                                         SaveAgreement& agreement, const Communicator& communicator)
    : files_(&files), tag_(&tag), agreement_(&agreement), communicator_(&communicator) {}

Failure CheckpointPublisher::open() {
  if (communicator_->rank() == 0) {
    const std::string id = checkpoint::new_save_id();
    const Failure failure = failure_of([&] { make_folder(id); });
    agreement_->say_ready(failure ? named(failure, 0).encoded() : kReady + id);
  }
  const std::string text = agreement_->await_ready();
  if (text.front() != kReady) return Failure::decoded(text);
  save_id_ = text.substr(1);
  return {};
}

// While another engine of this process saves into the directory, the other ranks hear that this one waits.
void CheckpointPublisher::make_folder(const std::string& id) {
  publication_.emplace(*files_, tag_->directory, tag_->manifest.tag, id,
                       [this] { agreement_->note_waiting(); });
}

std::filesystem::path CheckpointPublisher::folder() {
  const auto folder = checkpoint::partial_folder(tag_->directory, tag_->manifest.tag, save_id_);
  if (publication_) return folder;
  if (!tag_->node_local) {
    wait_until([&] { return files_->list(folder).has_value(); },
               std::min(kLongestDelay, communicator_->timeout()));
    if (files_->list(folder)) return folder;
    throw UserError("this host does not see " + folder.string() +
                    ", which rank 0 has created: save to a folder that all hosts share, or let each host "
                    "save to a folder of its own, with \"checkpoint\": {\"use_node_local_storage\": true}");
  }
  const auto is_of_this_save = [&] { return checkpoint::is_marked(*files_, folder, save_id_); };
  if (communicator_->is_first_on_host() && !is_of_this_save()) {
    make_folder(save_id_);
    return folder;
  }
  wait_until(is_of_this_save, communicator_->timeout());
  if (is_of_this_save()) return folder;
  throw UserError("the first rank of this host has not created " + folder.string() + " in time");
}

void CheckpointPublisher::wait_until(const std::function<bool()>& is_there, milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!is_there() && std::chrono::steady_clock::now() < end) {
    agreement_->broken().raise();
    agreement_->note_progress();
    std::this_thread::sleep_for(kPoll);
  }
}

Failure CheckpointPublisher::publish(const std::string& part, const Failure& failure) {
  if (failure) agreement_->say_broken(failure);
  const bool publishes = publication_ && communicator_->rank() > 0;
  const std::string kind =
      publishes ? kPartAndFolder + std::to_string(publication_->saving()) : std::string(1, kPart);
  agreement_->say_part(failure ? failure.encoded() : kind + part);
  if (communicator_->rank() == 0) {
    Failure outcome = publish_for_all();
    agreement_->say_outcome(outcome);
    return outcome;
  }
  if (publishes && !failure) {
    const std::string manifest = agreement_->await_manifest();
    if (!manifest.empty())
      agreement_->say_published(
          failure_of([&] { publication_->publish(manifest, tag_->save_latest, /*has_all=*/false); }));
  }
  return agreement_->await_outcome();
}

// Called on rank 0.
Failure CheckpointPublisher::publish_for_all() {
  Failure failure;
  std::string manifest;
  std::vector<int> others;
  const Failure own = failure_of([&] {
    checkpoint::Manifest whole = tag_->manifest;
    whole.saving = publication_->saving();
    others = collect_parts(whole, failure);
    if (failure) return;
    check_complete(whole);
    manifest = to_json(whole);
  });
  if (!failure) failure = named(own, 0);
  if (tag_->node_local) {
    const Failure on_others = failure_of([&] {
      agreement_->say_manifest(failure ? "" : manifest);
      if (!failure) failure = await_other_hosts(others);
    });
    if (!failure) failure = named(on_others, 0);
  }
  if (failure) return failure;
  return named(failure_of([&] { publication_->publish(manifest, tag_->save_latest, !tag_->node_local); }), 0);
}

// Returns the ranks that have a folder to publish, and makes the saving number higher than all in these
// folders. `failure` receives the first failure that a rank has posted instead of its part.
std::vector<int> CheckpointPublisher::collect_parts(checkpoint::Manifest& manifest, Failure& failure) {
  std::vector<int> others;
  manifest.numbers.clear();
  for (int rank = 0; rank < communicator_->world_size(); ++rank) {
    const std::string text = agreement_->await_part(rank);
    if (text.front() == kPart || text.front() == kPartAndFolder) {
      checkpoint::add_part(manifest, text.substr(text.find('{')), "checkpoint " + manifest.tag);
      if (text.front() == kPart) continue;
      others.push_back(rank);
      manifest.saving = std::max<int64_t>(manifest.saving, std::stoll(text.substr(1)));
    } else if (!failure) {
      failure = named(Failure::decoded(text), rank);
    }
  }
  return others;
}

Failure CheckpointPublisher::await_other_hosts(const std::vector<int>& ranks) {
  Failure failure;
  for (const int rank : ranks) {
    const Failure of_rank = agreement_->await_published(rank);
    if (!failure) failure = named(of_rank, rank);
  }
  return failure;
}

void CheckpointPublisher::remove_old() noexcept {
  if (publication_) publication_->remove_old(tag_->keep_last);
}

}  // namespace zerorun
