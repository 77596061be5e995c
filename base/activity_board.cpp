#include "base/activity_board.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <mutex>

#include "base/program_part.h"

namespace zerorun {
namespace {

// Says whose file it is, and how its entries look.
std::string name_of_activity_file() {
  return "zerorun activity " + std::to_string(sizeof(ActivityNow));
}

ActivityNow entry_without_launcher;
thread_local pid_t driving_thread = 0;  // the calling thread's number, if it drives

// This rank's entry on the launcher's board; null: there is none.
ActivityNow* map_entry() {
  const char* local_rank = std::getenv("LOCAL_RANK");
  const UniqueFd file = open_rank_file(kActivityBoardVariable, name_of_activity_file().c_str());
  if (local_rank == nullptr || !file.is_open()) return nullptr;
  const size_t place = static_cast<size_t>(std::max(std::atoi(local_rank), 0)) * sizeof(ActivityNow);
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  if (size < static_cast<off_t>(place + sizeof(ActivityNow))) return nullptr;
  void* all = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (all == MAP_FAILED) return nullptr;
  auto* entry = reinterpret_cast<ActivityNow*>(static_cast<std::byte*>(all) + place);
  // A rank's child process may have inherited the variable.
  const auto owner = static_cast<pid_t>(entry->process);
  if (owner > 0 && (::kill(owner, 0) == 0 || errno != ESRCH)) return nullptr;
  return entry;
}

// A forked child shares the entry with its parent, so it may not write there.
void leave_entry_in_child() {
  activity::shown.store(&entry_without_launcher, std::memory_order_relaxed);
}

ActivityNow* open_entry() {
  ActivityNow* entry = map_entry();
  if (entry == nullptr) return &entry_without_launcher;
  ::pthread_atfork(nullptr, nullptr, leave_entry_in_child);
  *entry = {};
  if (const StackFile file = open_stack_file(&entry->stacks); file.signal != 0) {
    entry->stack_signal = file.signal;
    entry->stack_file = file.descriptor;
  }
  std::atomic_ref(entry->process).store(::getpid(), std::memory_order_release);
  return entry;
}

ActivityNow& current_entry() {
  return *activity::shown.load(std::memory_order_acquire);
}

// What a rank still does on its way out of a wait that has failed is no sign of life.
void count_change(ActivityNow& entry) {
  if (std::atomic_ref(entry.has_given_up).load(std::memory_order_relaxed) != 0) return;
  std::atomic_ref(entry.thread).store(driving_thread, std::memory_order_relaxed);
  std::atomic_ref(entry.changes).fetch_add(1, std::memory_order_relaxed);
}

// The rank goes on after a wait that has failed, if one has.
void go_on(ActivityNow& entry) {
  std::atomic_ref(entry.has_given_up).store(0, std::memory_order_relaxed);
}

Activity exchange(ActivityNow& entry, Activity activity) {
  const Activity before = std::atomic_ref(entry.activity).exchange(activity, std::memory_order_relaxed);
  count_change(entry);
  return before;
}

// Whether there is a launcher that reads texts. Rank-threads would write them to one place.
bool has_reader() {
  return current_entry().process != 0;
}

// Of texts, which several threads of a rank may write.
std::mutex& text_mutex() {
  static std::mutex mutex;
  return mutex;
}

template <size_t kSize>
void put_text(std::array<char, kSize>& place, std::initializer_list<std::string_view> parts) {
  size_t end = 0;
  for (const std::string_view part : parts) end += part.copy(place.data() + end, kSize - 1 - end);
  place[end] = '\0';
}

template <size_t kSize>
std::string text_in(const std::array<char, kSize>& place) {
  const std::string_view text(place.data(), kSize);
  return std::string(text.substr(0, text.find('\0')));
}

const char* words_of_activity(Activity activity) {
  switch (activity) {
    case Activity::no_engine:
      return "in its own code, before initialize()";
    case Activity::initializing:
      return "in initialize()";
    case Activity::program:
      return "in its own code between calls of the engine";
    case Activity::forward:
      return "in its own code after the first use of parameters, in forward or behind it";
    case Activity::backward:
      return "in backward";
    case Activity::step:
      return "in engine.step()";
    case Activity::batch:
      return "in train_batch() or eval_batch()";
    case Activity::saving:
      return "in saving";
    case Activity::loading:
      return "in loading a checkpoint";
  }
  return "in a place that this launcher does not know";
}

}  // namespace

ActivityBoard::ActivityBoard(int ranks)
    : file_(name_of_activity_file().c_str(), sizeof(ActivityNow), ranks) {}

ActivityNow ActivityBoard::of(int local_rank) const {
  ActivityNow entry;
  return file_.read(local_rank, &entry) ? entry : ActivityNow{};
}

bool waits_for_ranks(const ActivityNow& now) {
  return now.waiters > 0 || now.has_given_up != 0;
}

std::string place_of(const ActivityNow& now) {
  if (waits_for_ranks(now)) return "in " + text_in(now.wait);
  const std::string part = text_in(now.part);
  return words_of_activity(now.activity) + (part.empty() ? part : ", in '" + part + "'");
}

namespace activity {

std::atomic<ActivityNow*> shown = nullptr;

void drive() {
  static ActivityNow* const entry = [] {
    ActivityNow* opened = open_entry();
    shown.store(opened, std::memory_order_release);
    return opened;
  }();
  static_cast<void>(entry);
  driving_thread = ::gettid();
}

StackFile stack_file() {
  const ActivityNow* entry = shown.load(std::memory_order_acquire);
  if (entry == nullptr) return {};
  return {.signal = entry->stack_signal, .descriptor = entry->stack_file};
}

void note_use() {
  ActivityNow* entry = shown.load(std::memory_order_acquire);
  if (entry == nullptr) return;
  const std::atomic_ref activity(entry->activity);
  Activity between = Activity::program;
  if (activity.load(std::memory_order_relaxed) == between)
    activity.compare_exchange_strong(between, Activity::forward, std::memory_order_relaxed);
  std::atomic_ref(entry->changes).fetch_add(1, std::memory_order_relaxed);
}

}  // namespace activity

ActivityScope::ActivityScope(Activity activity) {
  activity::drive();
  go_on(current_entry());
  before_ = exchange(current_entry(), activity);
}

ActivityScope::~ActivityScope() {
  const bool was_program = before_ == Activity::no_engine || before_ == Activity::forward;
  exchange(current_entry(), was_program ? Activity::program : before_);
}

ShownWait::ShownWait(std::string_view kind, std::string_view label, std::string_view reason)
    : is_shown_(driving_thread != 0 && has_reader()), exceptions_(std::uncaught_exceptions()) {
  if (!is_shown_) return;
  ActivityNow& entry = current_entry();
  {
    const std::lock_guard lock(text_mutex());
    put_text(entry.wait, {kind, kind.empty() ? "" : " of ", label, reason.empty() ? "" : " ", reason});
  }
  std::atomic_ref(entry.waiters).fetch_add(1, std::memory_order_relaxed);
  count_change(entry);
}

ShownWait::~ShownWait() {
  if (!is_shown_) return;
  ActivityNow& entry = current_entry();
  if (has_failed_ || std::uncaught_exceptions() > exceptions_) {
    std::atomic_ref(entry.has_given_up).store(1, std::memory_order_relaxed);
  } else {
    count_change(entry);
  }
  std::atomic_ref(entry.waiters).fetch_sub(1, std::memory_order_relaxed);
}

ProgramPart::ProgramPart(std::string_view name) : is_shown_(false) {
  if (driving_thread == 0 && ::gettid() != ::getpid()) return;
  activity::drive();
  is_shown_ = has_reader();
  if (!is_shown_) return;
  ActivityNow& entry = current_entry();
  go_on(entry);
  {
    const std::lock_guard lock(text_mutex());
    before_ = entry.part;
    put_text(entry.part, {name});
  }
  count_change(entry);
}

ProgramPart::~ProgramPart() {
  if (!is_shown_) return;
  ActivityNow& entry = current_entry();
  {
    const std::lock_guard lock(text_mutex());
    entry.part = before_;
  }
  count_change(entry);
}

}  // namespace zerorun
