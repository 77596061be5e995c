#!/usr/bin/env bash
# test_check_types.sh SOURCE: which types scripts/check_types sees, in folders of sample files.
set -euo pipefail
source=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  printf 'FAILED: %s\n%s\n' "$1" "$(cat "$scratch/text")"
  exit 1
}
check() { "$source/scripts/check_types" "$scratch/code" >"$scratch/text" 2>&1; }

# seen NAME CODE: two files with this code are refused, because both define NAME.
seen() {
  rm -rf "$scratch/code"
  mkdir "$scratch/code"
  printf 'namespace outer {\n%s\n}\n' "$2" | tee "$scratch/code/one.h" >"$scratch/code/two.h"
  if check; then fail "two of these are taken: $2"; fi
  grep -qF "two.h:2: outer::$1 is also defined in one.h:2: " "$scratch/text" || fail "the error does not name $1: $2"
}
# unseen CODE: both files may have this code.
unseen() {
  rm -rf "$scratch/code"
  mkdir "$scratch/code"
  printf 'namespace outer {\n%s\n}\n' "$1" | tee "$scratch/code/one.h" >"$scratch/code/two.h"
  check || fail "refused: $1"
}

seen A 'struct A {};'
seen A 'enum class A : int { one };'
seen A 'enum struct A { one };'
seen A 'union A { int one; };'
seen A 'template <class Type> class A final : public Type {};'
seen inner::A 'namespace inner { struct A {}; }'
seen A::B 'struct A::B {};'
seen A 'struct alignas(64) A {};'
seen A 'struct alignas(alignof(decltype(x))) A {};'
seen A 'struct [[nodiscard]] A {};'
seen A 'enum class [[nodiscard("a ] in { a text")]] A { one };'
seen A 'struct [[gnu::may_alias]] [[nodiscard]] alignas(8) A { int x; };'
seen A 'struct A : B<int(*)()> {};'
seen A 'struct A : B<sizeof(int) + 1>, private C<decltype(f())> {};'
seen A 'const char* text = "// {"; int number = 1'"'"'000; char brace = '"'{'"'; struct A {};'
seen A 'auto text = R"x({ " )x"; /* } */ struct A {};  // {'

unseen 'namespace { struct A {}; }'
unseen 'struct A;'
unseen 'void f() { struct A {}; }'
unseen 'template <class A> struct enum_of;'
unseen '// struct A {};'
# Programs of different folders of tests are never linked together.
mkdir -p "$scratch/code/tests/one" "$scratch/code/tests/two" "$scratch/code/tests/support"
rm "$scratch/code"/*.h
echo 'struct A {};' | tee "$scratch/code/tests/one/a.h" >"$scratch/code/tests/two/a.h"
check || fail "types in different folders of tests are refused"
mv "$scratch/code/tests/two/a.h" "$scratch/code/tests/support"
if check; then fail "a type in tests/support and in tests/one is taken"; fi

echo 'struct B {' >"$scratch/code/b.h"
if check; then fail "a file without its last brace is taken"; fi
grep -qF "b.h: a } is missing" "$scratch/text" || fail "the error does not name the file"
echo "check_types sees the types that it should"
