#include "base/route.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"

using zerorun::reachable_address;
using zerorun::Route;

TEST_CASE("the route to this host goes over its loopback interface") {
  CHECK(zerorun::route_to("127.0.0.1") == Route{"127.0.0.1", "127.0.0.1"});
  const Route named = zerorun::route_to("localhost");
  CHECK(named.local == named.remote);
}

TEST_CASE("an unknown host name is an error that names it") {
  CHECK_THROWS_WITH(zerorun::route_to("no-such-host.invalid"),
                    Catch::Matchers::Contains("no-such-host.invalid (MASTER_ADDR)"));
}

TEST_CASE("a rank's reachable address is the one that other hosts use") {
  const Route first{"10.0.0.1", "10.0.0.1"}, second{"10.0.0.2", "10.0.0.1"};
  CHECK(reachable_address({first, second}, 0) == "10.0.0.1");
  CHECK(reachable_address({first, second}, 1) == "10.0.0.2");
  // On MASTER_ADDR's own host the name may resolve to a loopback address other than 127.0.0.1.
  const Route loopback{"127.0.0.1", "127.0.1.1"};
  CHECK(reachable_address({loopback, loopback, second}, 0) == "10.0.0.1");
  CHECK(reachable_address({loopback, loopback, second}, 1) == "10.0.0.1");
  CHECK(reachable_address({loopback, loopback, second}, 2) == "10.0.0.2");
  CHECK(reachable_address({loopback, loopback}, 1) == "127.0.0.1");
  const Route v6{"fd00::2", "fd00::1"}, v6_loopback{"::1", "::1"};
  CHECK(reachable_address({v6_loopback, v6}, 0) == "fd00::1");
}
