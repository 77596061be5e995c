// Tests the exchange of words between rank-threads that share a store: late ranks, missing ranks, words with
// any bytes.
#include "comm/meeting/exchange.h"

#include <catch2/catch.hpp>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace zerorun {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using Words = std::vector<std::string>;

struct Rank {
  milliseconds starts_after{0};
  milliseconds timeout{20'000};
  bool comes = true;
  std::string word = "word";
};

// Returns one text per rank: the words that the rank received, each followed by '|', or the rank's error.
Words exchange(const std::vector<Rank>& ranks) {
  const Connection connection = c10::make_intrusive<c10d::HashStore>();
  Words results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].comes) continue;
    threads.emplace_back([&, rank] {
      std::this_thread::sleep_for(ranks[rank].starts_after);
      const JobStore store(connection, "rank 0", Seal("secret"), "job/");
      try {
        for (const std::string& word :
             exchange_words(store, "greeting", static_cast<int>(rank), static_cast<int>(ranks.size()),
                            ranks[rank].word, Deadline(ranks[rank].timeout), "the greeting")) {
          results[rank].append(word).append("|");
        }
      } catch (const CommError& error) {
        results[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace

TEST_CASE("exchange: every rank gets every word, also words with odd bytes, and also if a rank is late") {
  const std::string odd = std::string("3 a\0b|\n", 7) + "\xff";
  std::vector<Rank> ranks(4);
  ranks[0].word = "";
  ranks[1].word = odd;
  ranks[2].word = "12 34 56";
  ranks[3].word = std::string(5000, 'x');
  const std::string all = "|" + odd + "|12 34 56|" + std::string(5000, 'x') + "|";
  for (int late = -1; late < 4; ++late) {
    CAPTURE(late);
    for (int rank = 0; rank < 4; ++rank) ranks[rank].starts_after = milliseconds(rank == late ? 200 : 0);
    CHECK(exchange(ranks) == Words(4, all));
  }
}

TEST_CASE("exchange: every rank names the missing ones, whichever deadline comes first") {
  const struct {
    milliseconds of_rank_0, of_others;
  } timeouts[] = {{300ms, 300ms}, {300ms, 5s}, {900ms, 300ms}};
  for (const auto& [of_rank_0, of_others] : timeouts) {
    CAPTURE(of_rank_0.count(), of_others.count());
    std::vector<Rank> ranks(5, Rank{.timeout = of_others});
    ranks[0].timeout = of_rank_0;
    ranks[2].comes = ranks[4].comes = false;
    const Words results = exchange(ranks);
    for (const int rank : {0, 1, 3}) {
      CHECK_THAT(results[rank], Catch::Matchers::StartsWith("the greeting: ranks 2, 4 did not take part"));
    }
  }
}

TEST_CASE("exchange: if rank 0 is missing, the others name it and all other missing ranks") {
  std::vector<Rank> ranks(3, Rank{.timeout = 300ms});
  ranks[0].comes = false;
  Words results = exchange(ranks);
  CHECK_THAT(results[1], Catch::Matchers::StartsWith("the greeting: rank 0 did not take part within 0.3 s"));
  CHECK(results[1] == results[2]);
  ranks[2].comes = false;
  CHECK_THAT(exchange(ranks)[1], Catch::Matchers::StartsWith("the greeting: ranks 0, 2 did not take part"));
}

}  // namespace zerorun
