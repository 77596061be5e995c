// Communicator, and connect(), which connects to the other ranks by the environment that a launcher sets.
#pragma once

#include "comm/communicator.h"
#include "comm/rendezvous.h"
