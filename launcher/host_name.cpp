#include "launcher/host_name.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/error.h"

namespace zerorun::launcher {
namespace {

// A name that starts with '-' would be an option of ssh.
bool can_be_host(const std::string& name) {
  return !name.starts_with("-") && name.find_first_of("@,:;'\"`$()<>|&*?!\\[]{}^/") == std::string::npos;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// -1 if the text is no number.
int port_in(const std::string& digits) {
  constexpr size_t kMostDigits = 5;
  const bool number =
      !digits.empty() && digits.size() <= kMostDigits && std::ranges::all_of(digits, is_digit);
  return number ? std::stoi(digits) : -1;
}

}  // namespace

// ssh accepts `user@host`, and an IPv6 address has colons.
bool is_host(const std::string& name) {
  const size_t at = name.find('@');
  const std::string host = at == std::string::npos ? name : name.substr(at + 1);
  const std::string user = at == std::string::npos ? "user" : name.substr(0, at);
  const bool address = std::count(host.begin(), host.end(), ':') > 1;
  return !host.empty() && !user.empty() && can_be_host(user) &&
         (address ? is_address(host) : can_be_host(host));
}

bool is_address(const std::string& text) {
  const auto allowed = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view(".:%_-").find(c) != std::string_view::npos;
  };
  return !text.empty() && !text.starts_with("-") && std::ranges::all_of(text, allowed);
}

Endpoint parse_endpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  // An IPv6 address without a port has several colons and no bracket.
  const bool has_port = colon != std::string::npos && (text.find(':') == colon || text[colon - 1] == ']');
  Endpoint endpoint{has_port ? text.substr(0, colon) : text};
  std::string& address = endpoint.address;
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  if (has_port) endpoint.port = port_in(text.substr(colon + 1));
  if (!is_address(address) || endpoint.port < 0 || endpoint.port > kHighestPort) {
    throw UserError(
        "--rdzv_endpoint: expected HOST or HOST:PORT, where HOST is the name or address of a "
        "host; found '" +
        text + "'");
  }
  return endpoint;
}

}  // namespace zerorun::launcher
