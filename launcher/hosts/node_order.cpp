#include "launcher/hosts/node_order.h"

#include <climits>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"
#include "launcher/hosts/host_name.h"

namespace zerorun::launcher {
namespace {

using nlohmann::json;

constexpr int kLastPort = 65535;
constexpr int kHighestExitCode = 255;
constexpr int kHighestSignal = 64;
constexpr int kHighestWaitStatus = 0xffff;

std::string to_bytes(const json& message) {
  std::string bytes;
  json::to_cbor(message, bytes);
  return bytes;
}

// Makes the parser fail if a message is nested deeper than any real one: the parser recurses at every level,
// and could use up the stack.
class DepthCheck : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool enter() { return ++depth_ <= kDeepest; }
  bool leave() {
    --depth_;
    return true;
  }

  static constexpr int kDeepest = 16;
  int depth_ = 0;
};

json from_bytes(std::string_view payload) {
  DepthCheck check;
  if (!json::sax_parse(payload.begin(), payload.end(), &check, json::input_format_t::cbor)) {
    throw Error("it is not CBOR, or is nested too deeply");
  }
  return json::from_cbor(payload.begin(), payload.end());
}

int64_t whole_number(const json& value, int64_t lowest, int64_t highest) {
  // As int64_t, an unsigned number above its range would be a negative one.
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() ||
                                                  value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  const auto number = fits ? value.get<int64_t>() : 0;
  if (fits && number >= lowest && number <= highest) return number;
  throw Error("found " + value.dump() + ", expected a whole number from " + std::to_string(lowest) + " to " +
              std::to_string(highest));
}

// Without the check, a number of 64 bits would silently become another one of 32 bits.
int number(const json& value, int lowest, int highest) {
  return static_cast<int>(whole_number(value, lowest, highest));
}

int index_in(const json& value) {
  return number(value, 0, INT_MAX);
}

std::vector<int> indices_in(const json& values) {
  std::vector<int> indices;
  for (const json& value : values) indices.push_back(index_in(value));
  return indices;
}

json order_json(const StreamChoice& choice) {
  return {choice.all, choice.some};
}

StreamChoice stream_choice(const json& message) {
  constexpr int kBothStreams = 3;
  StreamChoice choice{.all = number(message.at(0), 0, kBothStreams), .some = {}};
  for (const json& one : message.at(1))
    choice.some.emplace_back(index_in(one.at(0)), number(one.at(1), 0, kBothStreams));
  return choice;
}

json order_json(const LogOptions& logs) {
  return {{"one_file_folder", logs.one_file_folder},
          {"folder", logs.folder},
          {"redirects", order_json(logs.redirects)},
          {"tee", order_json(logs.tee)},
          {"printed", logs.printed ? json(*logs.printed) : json()},
          {"run", logs.run},
          {"attempt", logs.attempt}};
}

LogOptions log_options(const json& message) {
  LogOptions logs{
      message.at("one_file_folder"),    message.at("folder"), stream_choice(message.at("redirects")),
      stream_choice(message.at("tee")), std::nullopt,         message.at("run")};
  if (!message.at("printed").is_null()) logs.printed = indices_in(message["printed"]);
  logs.attempt = index_in(message.at("attempt"));
  return logs;
}

std::vector<Node> nodes_of(const json& message) {
  std::vector<Node> nodes;
  for (const json& node : message) nodes.push_back({node.at(0), indices_in(node.at(1))});
  return nodes;
}

// The address goes into variables and messages. Node 0 does not know its own, and leaves it empty.
std::string address_in(const json& value) {
  std::string address = value;
  if (address.empty() || is_address(address)) return address;
  throw Error("the address '" + printable(address) + "' is none of a host");
}

void read(const json& message, NodeOrder& order) {
  order.nodes = nodes_of(message.at("nodes"));
  order.node = number(message.at("node"), 0, static_cast<int>(order.nodes.size()) - 1);
  order.slots_named = message.at("slots_named");
  order.arguments = message.at("arguments").get<std::vector<std::string>>();
  order.variables = message.at("variables").get<std::vector<std::pair<std::string, std::string>>>();
  order.folder = message.at("folder");
  order.venv_script = message.at("venv_script");
  order.token = message.at("token");
  order.device = message.at("device");
  order.comm = message.at("comm");
  order.timeout_seconds = message.at("timeout");
  order.terminal = message.at("terminal");
  order.timeline = message.at("timeline");
  order.timeline_steps = message.at("timeline_steps");
  order.full_world_size = index_in(message.at("full_world_size"));
  const json& keeper = message.at("keeper");
  order.keeper = {number(keeper.at(0), 0, kLastPort), keeper.at(1), keeper.at(2), keeper.at(3)};
  for (const auto& [name, grace] :
       {std::pair("grace", &order.grace), {"failure_grace", &order.failure_grace}})
    *grace = std::chrono::milliseconds(whole_number(message.at(name), 0, kLongestGrace.count()));
  order.hung_after = std::chrono::milliseconds(whole_number(message.at("hung_after"), 0, INT_MAX));
  order.bind_cores = message.at("bind_cores");
  order.bind_core_list = message.at("bind_core_list");
  order.logs = log_options(message.at("logs"));
  if (!message.at("port").is_null()) order.port = number(message["port"], 0, kLastPort);
}

void read(const json& message, MeetingPoint& point) {
  point = {address_in(message.at(0)), number(message.at(1), 1, kLastPort), message.at(2)};
}

void read(const json& message, AgentHello& hello) {
  hello = {message.at(0), number(message.at(1), -1, INT_MAX), message.at(2), message.at(3)};
}

void read(const json& message, KeeperHello& hello) {
  hello = {message.at(0), message.at(1), number(message.at(2), 1, kLastPort),
           number(message.at(3), 1, INT_MAX)};
}

void read(const json& message, AgentTrouble& trouble) {
  trouble = {message.at(0), message.at(1)};
}

void read(const json& message, NodeResult& result) {
  result = {number(message.at(0), 0, kHighestExitCode), number(message.at(1), 0, kHighestSignal)};
}

void read(const json& message, StoppedRank& stopped) {
  stopped = {index_in(message.at(0)), message.at(1)};
}

void read(const json& message, RankFailure& failure) {
  failure = {index_in(message.at(0)), number(message.at(1), 0, kHighestWaitStatus), message.at(2),
             message.at(3).get<std::vector<std::string>>(), message.at(4).get<std::vector<std::string>>()};
  if (!message.at(5).is_null()) failure.steps = whole_number(message.at(5), 0, INT64_MAX);
  failure.killed_from_outside = message.at(6);
  failure.is_hung = message.at(7);
}

}  // namespace

std::string encode(const NodeOrder& order) {
  json nodes = json::array();
  for (const Node& node : order.nodes) nodes.push_back({node.host, node.slots});
  return to_bytes({{"nodes", nodes},
                   {"node", order.node},
                   {"slots_named", order.slots_named},
                   {"arguments", order.arguments},
                   {"variables", order.variables},
                   {"folder", order.folder},
                   {"venv_script", order.venv_script},
                   {"token", order.token},
                   {"device", order.device},
                   {"comm", order.comm},
                   {"timeout", order.timeout_seconds},
                   {"terminal", order.terminal},
                   {"timeline", order.timeline},
                   {"timeline_steps", order.timeline_steps},
                   {"full_world_size", order.full_world_size},
                   {"keeper", json::array({order.keeper.port, order.keeper.ticket, order.keeper.tag,
                                           order.keeper.there})},
                   {"grace", order.grace.count()},
                   {"failure_grace", order.failure_grace.count()},
                   {"hung_after", order.hung_after.count()},
                   {"bind_cores", order.bind_cores},
                   {"bind_core_list", order.bind_core_list},
                   {"logs", order_json(order.logs)},
                   {"port", order.port ? json(*order.port) : json()}});
}

std::string encode(const MeetingPoint& point) {
  return to_bytes(json::array({point.address, point.port, point.held_memory}));
}

std::string encode(const AgentHello& hello) {
  return to_bytes(json::array({hello.version, hello.node, hello.host, hello.layout}));
}

std::string encode(const KeeperHello& hello) {
  return to_bytes(json::array({hello.tag, hello.place, hello.port, hello.pid}));
}

std::string encode(const AgentTrouble& trouble) {
  return to_bytes(json::array({trouble.message, trouble.user_mistake}));
}

std::string encode(const NodeResult& result) {
  return to_bytes(json::array({result.exit_code, result.interrupted_by}));
}

std::string encode(const StoppedRank& stopped) {
  return to_bytes(json::array({stopped.rank, stopped.description}));
}

std::string encode(const RankFailure& failure) {
  return to_bytes(json::array({failure.rank, failure.wait_status, failure.cause, failure.last_lines,
                               failure.memory, failure.steps ? json(*failure.steps) : json(),
                               failure.killed_from_outside, failure.is_hung}));
}

std::string encode(const RankOutput& output) {
  std::string payload(sizeof output.rank, '\0');
  std::memcpy(payload.data(), &output.rank, sizeof output.rank);
  payload += static_cast<char>(output.stream);
  return payload.append(output.bytes);
}

template <typename Message>
Message decode(std::string_view payload) {
  try {
    Message message;
    read(from_bytes(payload), message);
    return message;
  } catch (const std::exception& error) {
    throw Error(std::string("invalid message between launcher and agent: ") + error.what());
  }
}

template NodeOrder decode(std::string_view);
template MeetingPoint decode(std::string_view);
template AgentHello decode(std::string_view);
template KeeperHello decode(std::string_view);
template AgentTrouble decode(std::string_view);
template NodeResult decode(std::string_view);
template StoppedRank decode(std::string_view);
template RankFailure decode(std::string_view);

template <>
RankOutput decode(std::string_view payload) {
  RankOutput output;
  constexpr size_t kHead = sizeof output.rank + 1;
  if (payload.size() < kHead || static_cast<unsigned char>(payload[kHead - 1]) > 1) {
    throw Error("invalid message between launcher and agent: output without a rank and a stream");
  }
  std::memcpy(&output.rank, payload.data(), sizeof output.rank);
  output.stream = static_cast<Stream>(payload[kHead - 1]);
  output.bytes = payload.substr(kHead);
  return output;
}

std::string describe_layout(const std::vector<Node>& nodes, int max_restarts) {
  std::string text;
  for (const Node& node : nodes) {
    text += (text.empty() ? "" : ", ") + node.host + ": " + std::to_string(node.slots.size());
  }
  if (max_restarts > 0) text += ", --max_restarts " + std::to_string(max_restarts);
  return text;
}

}  // namespace zerorun::launcher
