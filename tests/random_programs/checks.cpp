#include "tests/random_programs/checks.h"

#include <torch/torch.h>

#include "tests/random_programs/expected_errors.h"

namespace zerorun::testing {

void expect(bool condition, const std::string& what) {
  if (!condition) throw Mismatch(what);
}

void expect_throws(const std::function<void()>& action, const std::string& part, const std::string& what) {
  try {
    action();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    expect(message.find(part) != std::string::npos,
           what + " threw, but nothing about \"" + part + "\": " + message);
    return;
  }
  throw Mismatch(what + " did not throw (\"" + part + "\")");
}

void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& what,
                 double tolerance) {
  expect(found.sizes() == expected.sizes() && found.scalar_type() == expected.scalar_type(),
         what + " has another shape or type");
  const at::Tensor a = found.to(at::kDouble);
  const at::Tensor b = expected.to(at::kDouble);
  at::Tensor same = at::logical_or(a.eq(b), at::logical_and(a.ne(a), b.ne(b)));
  if (tolerance > 0) same = at::logical_or(same, at::isclose(a, b, tolerance, tolerance));
  if (same.all().item<bool>()) return;
  throw Mismatch(
      c10::str(what, " differs by up to ", at::where(same, 0.0, (a - b).abs()).max().item<double>()));
}

const Note& JournalReader::next(const std::string& what) {
  expect(!at_end(), what + ": the plain run did not come here");
  return expected_[next_++];
}

void JournalReader::compare(const at::Tensor& found) {
  const Note& note = next("a value");
  expect(note.value.defined(), "found a value where the plain run has: " + note.what);
  expect_same(found.detach(), note.value, note.what, tolerance_);
}

void JournalReader::compare(const std::string& found) {
  const Note& note = next(found);
  expect(!note.value.defined(), "the plain run is elsewhere: " + note.what);
  expect(found == note.text, note.what + " \"" + found + "\"; expected: \"" + note.text + "\"");
}

const std::string& JournalReader::next_text() {
  expect(!at_end(), "the plain run did not come here");
  return expected_[next_].text;
}

bool JournalReader::attempt(const std::string& what, const std::function<void()>& action) {
  const Note& note = next(what);
  expect(!note.value.defined(), "the plain run is elsewhere: " + note.what);
  if (note.text == kLeftOut) return false;
  if (note.text.empty()) {
    action();
    return true;
  }
  expect_throws(action, note.text, what);
  return false;
}

}  // namespace zerorun::testing
