#include "base/greeting.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/sockets.h"

namespace zerorun {
namespace {

constexpr size_t kNumber = 16;
constexpr size_t kCode = sizeof(uint64_t);

std::string greeting_code(const Seal& secret, std::string_view role, const std::string& numbers) {
  const std::vector<uint8_t> bytes = secret.close(std::string(role) + numbers, "");
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::string random_bytes(size_t size) {
  std::string bytes(size, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Error(std::string("the system gives no random numbers: ") + std::strerror(errno));
  }
  return bytes;
}

Greeting::Greeting(UniqueFd fd, const Seal& secret, const GreetingWords& words)
    : fd_(std::move(fd)), secret_(&secret), words_(&words), deadline_(Clock::now() + kGreetingPatience) {
  ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
}

bool Greeting::service() {
  if (Clock::now() >= deadline_) return false;
  // Reads no more than this stage needs: messages may follow the code at once.
  const std::string_view hello = words_->hello;
  const size_t wanted = stage_ == Stage::greeting ? hello.size() + kNumber : kCode;
  std::array<char, 64> buffer;
  const ssize_t size = ::recv(fd_.get(), buffer.data(), wanted - incoming_.size(), 0);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (size == 0) return false;
  incoming_.append(buffer.data(), static_cast<size_t>(size));
  if (!hello.starts_with(incoming_.substr(0, hello.size())) && stage_ == Stage::greeting) return false;
  if (incoming_.size() < wanted) return true;
  if (stage_ == Stage::greeting) return answer_greeting();
  const bool known = incoming_ == greeting_code(*secret_, words_->client, numbers_);
  if (known) stage_ = Stage::done;
  return known;
}

bool Greeting::answer_greeting() {
  const std::string own = random_bytes(kNumber);
  numbers_ = incoming_.substr(words_->hello.size()) + own;
  incoming_.clear();
  stage_ = Stage::code;
  return send_few(fd_.get(), own + greeting_code(*secret_, words_->server, numbers_));
}

UniqueFd Greeting::take() {
  return std::move(fd_);
}

bool greet(int fd, const Seal& secret, const GreetingWords& words,
           std::chrono::steady_clock::time_point deadline) {
  const std::string own = random_bytes(kNumber);
  if (!send_few(fd, std::string(words.hello) + own)) return false;
  const std::optional<std::string> answer = receive(fd, kNumber + kCode, deadline);
  if (!answer) return false;
  const std::string numbers = own + answer->substr(0, kNumber);
  if (answer->substr(kNumber) != greeting_code(secret, words.server, numbers)) return false;
  return send_few(fd, greeting_code(secret, words.client, numbers));
}

}  // namespace zerorun
