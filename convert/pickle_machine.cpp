#include "convert/pickle_machine.h"

#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hexadecimal.h"

namespace zerorun::convert {
namespace {

// A value stack, marks and a memo. For an opcode that imports or calls, the machine adds a node that
// describes the import or call. Each opcode adds at most one node and copies no value, so memory is
// proportional to the pickle's size: about 100 bytes for a value, which may take one byte there.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> bytes, const std::string& place, PickleArena& arena)
      : bytes_(bytes), place_(place), arena_(arena), none_(arena.add(PickleKind::none)) {}

  uint32_t run() {
    while (true) {
      if (arena_.size() > kMostNodes) fail("has more than 10 million values");
      const auto opcode = static_cast<char>(take<uint8_t>());
      if (opcode == '.') break;
      const bool done = run_number(opcode) || run_text(opcode) || run_container(opcode) ||
                        run_object(opcode) || run_stack(opcode);
      if (!done) fail_opcode(opcode);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("ends with another stack than one value");
    return stack_.back();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UserError(place_ + ": the pickle " + what + " (at byte " + std::to_string(offset_) + ")");
  }
  [[noreturn]] void fail_opcode(char opcode) const {
    fail("has the opcode 0x" + in_hexadecimal(std::string_view(&opcode, 1)) +
         ", which torch.save does not write for data: expected pickle protocol 2 to 5");
  }

  std::span<const std::byte> take_bytes(uint64_t count) {
    if (count > bytes_.size() - offset_) fail("is cut off, or a length goes beyond its end");
    const auto taken = bytes_.subspan(offset_, count);
    offset_ += count;
    return taken;
  }
  template <typename Integer>
  Integer take() {
    Integer value;
    std::memcpy(&value, take_bytes(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string take_text(uint64_t count) {
    const auto bytes = take_bytes(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string take_line() {
    const auto rest = bytes_.subspan(offset_);
    const void* end = rest.empty() ? nullptr : std::memchr(rest.data(), '\n', rest.size());
    if (!end) fail("is cut off in a name");
    const auto length = static_cast<size_t>(static_cast<const std::byte*>(end) - rest.data());
    std::string line = take_text(length);
    ++offset_;
    return line;
  }

  // Stack operations. They fail instead of taking values below the last mark.
  void push(uint32_t node) { stack_.push_back(node); }
  uint32_t pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("takes a value from an empty stack");
    const uint32_t node = stack_.back();
    stack_.pop_back();
    return node;
  }
  uint32_t top() {
    const uint32_t node = pop();
    push(node);
    return node;
  }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) fail("has no mark where one is needed");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    std::vector<uint32_t> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    return items;
  }

  void push_integer(int64_t value) {
    push(arena_.add(PickleKind::integer));
    arena_.at(stack_.back()).integer = value;
  }
  void push_boolean(bool value) {
    push(arena_.add(PickleKind::boolean));
    arena_.at(stack_.back()).boolean = value;
  }
  void push_real(double value) {
    push(arena_.add(PickleKind::real));
    arena_.at(stack_.back()).real = value;
  }
  void push_text(PickleKind kind, std::string text) {
    push(arena_.add(kind));
    arena_.at(stack_.back()).text = std::move(text);
  }
  void push_items(PickleKind kind, std::vector<uint32_t> items) {
    push(arena_.add(kind));
    arena_.at(stack_.back()).items = std::move(items);
  }

  // Pushes an integer of `count` bytes in two's complement, little-endian.
  void push_long(uint64_t count) {
    const auto bytes = take_bytes(count);
    const bool negative = count > 0 && (static_cast<uint8_t>(bytes.back()) & 0x80) != 0;
    if (count <= sizeof(int64_t)) {
      int64_t value = negative ? -1 : 0;
      std::memcpy(&value, bytes.data(), bytes.size());
      push_integer(value);
      return;
    }
    std::string from_highest;
    for (size_t index = bytes.size(); index-- > 0;) from_highest += static_cast<char>(bytes[index]);
    push_text(PickleKind::large_integer, "0x" + in_hexadecimal(from_highest));
  }

  bool run_number(char opcode) {
    switch (opcode) {
      case 'N':
        push(none_);
        return true;
      case '\x88':
        push_boolean(true);
        return true;
      case '\x89':
        push_boolean(false);
        return true;
      case 'J':
        push_integer(take<int32_t>());
        return true;
      case 'K':
        push_integer(take<uint8_t>());
        return true;
      case 'M':
        push_integer(take<uint16_t>());
        return true;
      case '\x8a':
        push_long(take<uint8_t>());
        return true;
      case '\x8b':
        push_long(take<uint32_t>());
        return true;
      case 'G':
        push_real(std::bit_cast<double>(__builtin_bswap64(take<uint64_t>())));
        return true;
      default:
        return false;
    }
  }

  bool run_text(char opcode) {
    switch (opcode) {
      case 'X':
        push_text(PickleKind::text, take_text(take<uint32_t>()));
        return true;
      case '\x8c':
        push_text(PickleKind::text, take_text(take<uint8_t>()));
        return true;
      case '\x8d':
        push_text(PickleKind::text, take_text(take<uint64_t>()));
        return true;
      case 'T':
        push_text(PickleKind::text, take_text(take<uint32_t>()));
        return true;
      case 'U':
        push_text(PickleKind::text, take_text(take<uint8_t>()));
        return true;
      case 'B':
        push_text(PickleKind::bytes, take_text(take<uint32_t>()));
        return true;
      case 'C':
        push_text(PickleKind::bytes, take_text(take<uint8_t>()));
        return true;
      case '\x8e':
      case '\x96':
        push_text(PickleKind::bytes, take_text(take<uint64_t>()));
        return true;
      default:
        return false;
    }
  }

  bool run_container(char opcode) {
    switch (opcode) {
      case ')':
        push_items(PickleKind::tuple, {});
        return true;
      case ']':
        push_items(PickleKind::list, {});
        return true;
      case '}':
        push_items(PickleKind::dict, {});
        return true;
      case '\x8f':
        push_items(PickleKind::set, {});
        return true;
      case 't':
        push_items(PickleKind::tuple, pop_to_mark());
        return true;
      case '\x91':
        push_items(PickleKind::set, pop_to_mark());
        return true;
      case '\x85':
        push_tuple(1);
        return true;
      case '\x86':
        push_tuple(2);
        return true;
      case '\x87':
        push_tuple(3);
        return true;
      case 'a':
        extend({pop()}, 1);
        return true;
      case 'e':
      case '\x90':
        extend(pop_to_mark(), 1);
        return true;
      case 's': {
        const uint32_t value = pop();
        extend({pop(), value}, 2);
        return true;
      }
      case 'u':
        extend(pop_to_mark(), 2);
        return true;
      default:
        return false;
    }
  }

  void push_tuple(size_t count) {
    std::vector<uint32_t> items(count);
    for (size_t index = count; index-- > 0;) items[index] = pop();
    push_items(PickleKind::tuple, std::move(items));
  }

  // Adds items (`stride` 1) or keys and values (`stride` 2) to the container at the top of the stack.
  void extend(const std::vector<uint32_t>& items, size_t stride) {
    PickleNode& container = arena_.at(top());
    const bool takes_pairs = container.kind == PickleKind::dict || container.kind == PickleKind::object;
    const bool takes_items = container.kind == PickleKind::list || container.kind == PickleKind::set ||
                             container.kind == PickleKind::object;
    if (stride == 2 ? !takes_pairs : !takes_items) fail("adds items to a value that takes none");
    if (items.size() % stride != 0) fail("sets a key without a value");
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  bool run_object(char opcode) {
    switch (opcode) {
      case 'c': {
        const std::string module = take_line();
        push_text(PickleKind::global, module + "." + take_line());
        return true;
      }
      case '\x93': {
        const uint32_t name = pop();
        const uint32_t module = pop();
        if (arena_.at(name).kind != PickleKind::text || arena_.at(module).kind != PickleKind::text)
          fail("names a class by other values than text");
        if (arena_.at(name).text.size() + arena_.at(module).text.size() > kLongestGlobal)
          fail("names a class with a name of more than 256 bytes");
        push_text(PickleKind::global, arena_.at(module).text + "." + arena_.at(name).text);
        return true;
      }
      case 'R':
      case '\x81': {
        const uint32_t arguments = pop();
        push_object(pop(), arguments);
        return true;
      }
      case '\x92': {
        const uint32_t named = pop();
        const uint32_t arguments = pop();
        push_object(pop(), arguments);
        arena_.at(top()).items = {arguments, named};
        return true;
      }
      case 'b': {
        const uint32_t state = pop();
        arena_.at(top()).state = state;
        return true;
      }
      case 'Q': {
        const uint32_t identity = pop();
        push(arena_.add(PickleKind::persistent));
        arena_.at(top()).arguments = identity;
        return true;
      }
      default:
        return false;
    }
  }

  void push_object(uint32_t callee, uint32_t arguments) {
    const PickleNode& called = arena_.at(callee);
    const bool is_ordered_dict = called.kind == PickleKind::global && called.text == kOrderedDict &&
                                 arena_.at(arguments).items.empty();
    push(arena_.add(is_ordered_dict ? PickleKind::dict : PickleKind::object));
    arena_.at(top()).callee = callee;
    arena_.at(top()).arguments = arguments;
  }

  bool run_stack(char opcode) {
    switch (opcode) {
      case '\x80':
        if (const int protocol = take<uint8_t>(); protocol < 2 || protocol > 5)
          fail("has protocol " + std::to_string(protocol) + ": expected 2 to 5");
        return true;
      case '\x95':
        take<uint64_t>();
        return true;  // skips the length of a frame, which only helps prefetching
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        pop();
        return true;
      case '1':
        pop_to_mark();
        return true;
      case '2':
        push(top());
        return true;
      case 'q':
        memo_[take<uint8_t>()] = top();
        return true;
      case 'r':
        memo_[take<uint32_t>()] = top();
        return true;
      case '\x94':
        memo_.emplace(static_cast<uint32_t>(memo_.size()), top());
        return true;
      case 'h':
        push(remembered(take<uint8_t>()));
        return true;
      case 'j':
        push(remembered(take<uint32_t>()));
        return true;
      default:
        return false;
    }
  }

  uint32_t remembered(uint32_t number) const {
    const auto found = memo_.find(number);
    if (found == memo_.end()) fail("refers to the memo " + std::to_string(number) + ", which was never set");
    return found->second;
  }

  static constexpr const char* kOrderedDict = "collections.OrderedDict";
  static constexpr size_t kMostNodes = 10'000'000;
  static constexpr size_t kLongestGlobal = 256;  // bounds memory if many classes refer to one long text

  std::span<const std::byte> bytes_;
  const std::string& place_;
  PickleArena& arena_;
  uint32_t none_;
  size_t offset_ = 0;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // stack size at each mark
  std::unordered_map<uint32_t, uint32_t> memo_;
};

}  // namespace

uint32_t run_pickle(std::span<const std::byte> bytes, const std::string& place, PickleArena& arena) {
  return PickleMachine(bytes, place, arena).run();
}

}  // namespace zerorun::convert
