#include "comm/meeting/exchange.h"

#include <thread>

#include "base/error.h"

namespace zerorun {
namespace {

std::string key_of(const std::string& name, int rank) {
  return name + "/" + std::to_string(rank);
}

std::vector<std::string> keys_of_ranks(const std::string& name, int first, int end) {
  std::vector<std::string> keys;
  for (int rank = first; rank < end; ++rank) keys.push_back(key_of(name, rank));
  return keys;
}

// The result of an exchange: the words by rank, and the ranks that have posted no word.
struct Finding {
  std::vector<std::string> words;
  std::vector<int> missing;

  // Encodes the result: the number of missing ranks, then the missing ranks, then all words, each preceded by
  // its length.
  std::string text() const {
    std::string text = std::to_string(missing.size()) + " ";
    for (const int rank : missing) text.append(std::to_string(rank)).append(" ");
    for (const std::string& word : words) text.append(std::to_string(word.size())).append(" ").append(word);
    return text;
  }
  static Finding read(const std::string& text) {
    Finding finding;
    size_t at = 0;
    auto number = [&] {
      const size_t space = text.find(' ', at);
      const int value = std::stoi(text.substr(at, space - at));
      at = space + 1;
      return value;
    };
    for (int left = number(); left > 0; --left) finding.missing.push_back(number());
    while (at < text.size()) {
      const auto size = static_cast<size_t>(number());
      finding.words.push_back(text.substr(at, size));
      at += size;
    }
    return finding;
  }
};

// Looks for each rank's word without waiting for it. Called when the deadline has passed.
Finding look_for_each(const JobStore& store, const std::string& name, int world_size) {
  const Deadline soon(kTimeToAnswer);
  Finding finding;
  finding.words.resize(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    if (auto word = store.find(key_of(name, rank), soon)) {
      finding.words[rank] = std::move(*word);
    } else {
      finding.missing.push_back(rank);
    }
  }
  return finding;
}

// Rank 0's part of an exchange. Publishes the result even if ranks are missing at rank 0's deadline. So the
// other ranks can name the missing ranks, even if rank 0 ends before their deadlines and the store is then
// gone.
Finding gather(const JobStore& store, const std::string& name, int world_size, const std::string& all,
               const Deadline& deadline) {
  Finding finding;
  if (auto words = store.await_all(keys_of_ranks(name, 0, world_size), deadline)) {
    finding.words = std::move(*words);
  } else {
    finding = look_for_each(store, name, world_size);
  }
  store.set(all, finding.text(), Deadline(kTimeToAnswer));
  if (!finding.missing.empty()) std::this_thread::sleep_for(kTimeToRead);
  return finding;
}

}  // namespace

std::vector<std::string> exchange_words(const JobStore& store, const std::string& name, int rank,
                                        int world_size, const std::string& word, const Deadline& deadline,
                                        const std::string& purpose, int first) {
  const std::string all = key_of(name, world_size);  // differs from every rank's key
  Finding finding;
  told_why(purpose, deadline, [&] {
    store.set(key_of(name, rank), word, deadline);
    if (rank == 0) {
      finding = gather(store, name, world_size, all, deadline);
    } else if (const auto text = store.await(all, deadline)) {
      finding = Finding::read(*text);
    } else {
      finding = look_for_each(store, name, world_size);  // rank 0 is missing, or its deadline is later
    }
  });
  if (!finding.missing.empty()) {
    for (int& missing : finding.missing) missing += first;
    throw CommError(missed_deadline(purpose, finding.missing, deadline.timeout()));
  }
  return finding.words;
}

void keep_store_until_read(const JobStore& store, int rank, int world_size, const Deadline& deadline,
                           const std::string& name) {
  try {
    store.set(key_of(name, rank), "", deadline);
    if (rank == 0) store.await_all(keys_of_ranks(name, 1, world_size), deadline);
  } catch (const CommError&) {
    // Ignored, because the error that all ranks are about to throw matters more.
  }
}

}  // namespace zerorun
