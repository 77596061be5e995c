// The other ranks: Communicator, and connect(), which joins them by the environment that a launcher sets.
#pragma once

#include "comm/communicator.h"
#include "comm/rendezvous.h"
